"""Clients that hang up: the run goes on, unless they asked for its end. Real sockets throughout."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import Client
from a2a.types import Message, Part, Role, SendMessageRequest
from support.a2a_wires import USUAL, Wire, client_over, over_each_wire
from support.model_server import ModelServer, model_server
from support.stack import Stage, stage

from diptych.manifest.settings import TimeoutConfig

PATIENT = TimeoutConfig(connect=1, first_byte=30, idle=30, total=30)
STREAM = [pytest.param(True, id="streamed"), pytest.param(False, id="not streamed")]


@asynccontextmanager
async def waiting(*steps: Any, **fields: Any) -> AsyncIterator[tuple[Stage, ModelServer]]:
    async with (
        model_server(*steps) as model,
        stage(model=model, timeouts=PATIENT, **fields) as helper,
    ):
        yield helper, model


async def hang_up_on(helper: Stage, model: ModelServer, **fields: Any) -> str:
    """Ask, and close the connection while the model thinks; gives the run's id."""
    async with httpx.AsyncClient(base_url=helper.url, timeout=10) as client:
        body = {"messages": [{"role": "user", "content": "hi"}], **fields}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.wait_for(model.asked.wait(), 5)
        asking.cancel()
        await asyncio.wait([asking])
    (entry,) = await helper.served.runs.entries()
    return entry.run_id


@pytest.mark.parametrize("stream", STREAM)
async def test_a_run_goes_on_when_its_client_has_gone(stream: bool) -> None:
    go_on = asyncio.Event()

    async def thinks(exchange: Any) -> Any:
        await go_on.wait()
        return await exchange.say("{}")

    async with waiting(thinks, "Here it is.") as (helper, model):
        run_id = await hang_up_on(helper, model, stream=stream)
        await asyncio.sleep(0.05)
        assert (await helper.run(run_id))["status"] == "running"
        go_on.set()
        assert (await helper.ended(run_id))["answer"] == "Here it is."
        assert not model.hung_up.is_set()


@over_each_wire
async def test_a_task_goes_on_when_its_a2a_client_has_gone(wire: Wire) -> None:
    go_on = asyncio.Event()

    async def thinks(exchange: Any) -> Any:
        await go_on.wait()
        return await exchange.say("{}")

    said = Message(message_id="m-1", role=Role.ROLE_USER, parts=[Part(text="hi")])
    async with waiting(thinks, "Here it is.") as (helper, model):
        async with httpx.AsyncClient(timeout=10) as http:
            client = await client_over(wire, http, helper.url, streaming=wire != USUAL)
            asking = asyncio.create_task(told(client, SendMessageRequest(message=said)))
            await asyncio.wait_for(model.asked.wait(), 5)
            asking.cancel()
            await asyncio.wait([asking])
        (entry,) = await helper.served.runs.entries()
        await asyncio.sleep(0.05)
        go_on.set()
        assert (await helper.ended(entry.run_id))["answer"] == "Here it is."
        assert not model.hung_up.is_set()


async def told(client: Client, request: SendMessageRequest) -> list[Any]:
    return [event async for event in client.send_message(request)]
