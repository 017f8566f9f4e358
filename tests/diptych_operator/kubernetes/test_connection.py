"""What the connection reports of watches, and its credentials."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from diptych_operator.kubernetes import connection as connection_module
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.watch.staleness import WatchStaleness


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


async def test_every_chunk_of_a_watch_is_reported_and_nothing_else(clock):
    staleness = WatchStaleness(clock)
    staleness.note_lists(are_complete=True)
    staleness.expect(["/api/v1/pods"])

    async def stream(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2):
            await response.write(b"{}\n")
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", stream)
    async with TestServer(app) as server:
        connection = Connection(str(server.make_url("")).rstrip("/"), True, lambda: "Bearer x")
        async with connection.session(staleness.note_data) as session:
            async with session.get(f"{connection.server}/api/v1/pods") as answer:
                await answer.read()
            assert staleness.seconds() == 0.0
            clock.now = 5.0
            async with session.get(f"{connection.server}/api/v1/pods?watch=true") as answer:
                assert answer.request_info.headers["Authorization"] == "Bearer x"
                clock.now = 7.0
                async for _ in answer.content.iter_chunked(10):
                    assert staleness.seconds() == 0.0
                    clock.now += 1.0


async def test_k13_a_token_that_was_rotated_is_read_again(monkeypatch, tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.setattr(connection_module, "_TOKEN_FILE", file)
    header = connection_module._service_account_token()
    assert header() == "Bearer first"
    file.write_text("second\n")
    assert header() == "Bearer first"
    monkeypatch.setattr(connection_module, "_TOKEN_SECONDS", 0)
    assert header() == "Bearer second"
