"""How much of a response aiohttp takes at a time, with our protocol."""

from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from support.stack import listening

from diptych.net.guarded_connector import GuardedConnector
from diptych.net.outgoing import OutgoingPolicy

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
