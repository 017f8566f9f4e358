"""Servers that are stopped: what a cancellation does to them meanwhile."""

import asyncio
import socket
from typing import Any, cast

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette

from diptych.serve import http_server
from diptych.serve.http_server import run_http_server, run_server


async def test_a_cancellation_waits_until_servers_have_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that reached them would end their lifespan by its traceback: Ctrl-C in `diptych demo`."""
    stopping = asyncio.Event()

    async def serve_once() -> None:
        config = uvicorn.Config(Starlette(), log_config=None)
        with socket.create_server(("127.0.0.1", 0)) as bound:
            async with run_server(config, bound):
                stopping.set()

    before = asyncio.all_tasks()
    serving = asyncio.create_task(serve_once())
    await stopping.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert asyncio.all_tasks() == before
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_request_that_does_not_end_is_cut_in_order(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """uvicorn would cancel it, log its traceback, and answer with a text."""
    monkeypatch.setattr(http_server, "CLOSE_SECONDS", 0.2)
    begun = asyncio.Event()

    async def hang(scope: Any, receive: Any, _send: Any) -> None:
        if scope["type"] == "http":
            begun.set()
            while (await receive())["type"] != "http.disconnect":
                pass

    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        async with run_http_server([(cast("FastAPI", hang), bound)]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b"body" if is_whole else b"bo"
            writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n" + body)
            await begun.wait()
    told = b""
    try:
        told = await reader.read()
    except ConnectionError:
        assert is_whole
    writer.close()
    assert told[:12] == (b"" if is_whole else b"HTTP/1.1 503")
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert all("Exception" not in message for message in logged)
