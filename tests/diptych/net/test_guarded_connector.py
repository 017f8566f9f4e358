"""How much of a response aiohttp takes at a time, with our protocol."""

from typing import Any

import aiohttp
import aiohttp.connector
import pytest
from support.stack import listening

from diptych.models.connection import allow_url, open_http_session
from diptych.net.outgoing import KEEP_SECONDS


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
