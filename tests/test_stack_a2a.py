"""The client of the A2A SDK against an agent that is served: blocking, streamed, cancelled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from a2a.client import Client
from a2a.types import (
    CancelTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    TaskState,
)
from support.a2a_wires import USUAL, Wire, client_over, over_each_wire
from support.model_server import model_server, silence
from support.stack import Stage, box, call, stage

from diptych.manifest.settings import TimeoutConfig

PATIENT = TimeoutConfig(connect=1, first_byte=30, idle=30, total=30)
ANSWER = "The echo returned: hello - Grüße 🤝."


async def echo(text: str) -> str:
    """Say a text again."""
    return text


@asynccontextmanager
async def client_of(helper: Stage, wire: Wire = USUAL, *, streaming: bool) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(timeout=10) as http:
        yield await client_over(wire, http, helper.url, streaming=streaming)


def message(text: str = "hi", context_id: str = "") -> SendMessageRequest:
    said = Message(
        message_id="m-1", role=Role.ROLE_USER, parts=[Part(text=text)], context_id=context_id
    )
    return SendMessageRequest(message=said)


async def heard(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [event async for event in client.send_message(request)]


@over_each_wire
async def test_a_streaming_client_gets_the_same_piece_by_piece(wire: Wire) -> None:
    replies = (call("echo", text="hello"), "{}", {"content": ANSWER, "chunk_ms": 30})
    async with (
        stage(*replies, tools=(box(echo),)) as helper,
        client_of(helper, wire, streaming=True) as client,
    ):
        events = await heard(client, message())
        kinds = [event.WhichOneof("payload") for event in events]
        assert kinds[0] == "task"
        pieces = [e.artifact_update for e in events if e.HasField("artifact_update")]
        assert len(pieces) > 2
        assert "".join(part.text for p in pieces for part in p.artifact.parts) == ANSWER
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_a_cancelled_task_stops_the_model_too() -> None:
    async with (
        model_server(silence) as model,
        stage(model=model, timeouts=PATIENT) as helper,
        client_of(helper, streaming=True) as client,
    ):
        asking = asyncio.create_task(heard(client, message()))
        await asyncio.wait_for(model.asked.wait(), 5)
        (run,) = (await helper.http.get("/v1/runs")).json()["data"]
        async with asyncio.timeout(1):
            task = await client.cancel_task(CancelTaskRequest(id=run["id"]))
            assert task.status.state == TaskState.TASK_STATE_CANCELED
            await model.hung_up.wait()
            events = await asking
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED
