"""How much of a response aiohttp takes at a time, with our protocol."""

from typing import Any

import aiohttp
import aiohttp.connector
import pytest
from aiohttp.client_proto import ResponseHandler
from support.stack import listening

from diptych.models.connection import allow_url, open_http_session
from diptych.net.guarded_connector import GuardedConnector
from diptych.net.outgoing import KEEP_SECONDS, OutgoingPolicy

PIECES = 200


async def pieces(scope: Any, receive: Any, send: Any) -> None:
    """Answer with chunks of as many bytes as the path says."""
    if scope["type"] != "http":
        return
    body = b"x" * int(scope["path"][1:])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(PIECES):
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize(("size", "is_resumed"), [(10, False), (2**14, True)])
async def test_only_what_was_paused_is_resumed(
    size: int, *, is_resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = 0
    resume = ResponseHandler.resume_reading

    def counted(self: ResponseHandler, resume_parser: bool = True) -> None:  # noqa: FBT002 - aiohttp's
        nonlocal resumed
        resumed += 1
        resume(self, resume_parser)

    monkeypatch.setattr(ResponseHandler, "resume_reading", counted)
    async with (
        listening(pieces) as url,
        aiohttp.ClientSession(
            connector=GuardedConnector(OutgoingPolicy([url])), read_bufsize=2**16
        ) as session,
        session.get(f"{url}/{size}") as response,
    ):
        read = 0
        while piece := await response.content.readany():
            read += len(piece)
    assert read == PIECES * size
    assert bool(resumed) == is_resumed


@pytest.mark.parametrize(("idle", "connections"), [(KEEP_SECONDS - 0.5, 1), (4.9, 2)])
async def test_a_connection_that_its_server_may_close_is_not_used_again(
    idle: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn and llama.cpp close what was idle for 5 s; a request may meet that on its way."""
    peers = set[Any]()
    seconds = 1000.0
    monkeypatch.setattr(aiohttp.connector, "monotonic", lambda: seconds)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            peers.add(tuple(scope["client"]))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with listening(answer) as url, open_http_session() as session:
        allow_url(session, url)
        for _ in range(2):
            async with session.get(url):
                pass
            seconds += idle
    assert len(peers) == connections
