"""Servers that are stopped: what a cancellation does to them meanwhile."""

import asyncio
import socket

import pytest
import uvicorn
from starlette.applications import Starlette

from diptych.serve.http_server import run_servers


async def test_a_cancellation_waits_until_servers_have_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that reached them would end their lifespan by its traceback: Ctrl-C in `diptych demo`."""
    stopping = asyncio.Event()

    async def serve_once() -> None:
        config = uvicorn.Config(Starlette(), log_config=None)
        with socket.create_server(("127.0.0.1", 0)) as bound:
            async with run_servers([(config, bound)]):
                stopping.set()

    before = asyncio.all_tasks()
    serving = asyncio.create_task(serve_once())
    await stopping.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert asyncio.all_tasks() == before
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
