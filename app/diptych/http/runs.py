"""`/v1/runs`: start a run, read it, follow its events, cancel it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from diptych.errors import InvalidRequest
from diptych.events import Origin
from diptych.http.bodies import RunBody, read_body, read_messages, read_session_id
from diptych.http.sse import SseResponse, frame
from diptych.http.views import event_view, notice_view, run_view
from diptych.messages import Message
from diptych.ports import Notice
from diptych.runs import Ask, Runs

_DIGITS = 15  # of the largest seq that anyone will reach


def run_routes(runs: Runs) -> APIRouter:
    """Give the routes under `/v1/runs`."""
    router = APIRouter()

    @router.post("/v1/runs", status_code=202)
    async def start(request: Request) -> dict[str, Any]:
        body = await read_body(request, RunBody)
        messages, system = _messages(body)
        session_id = read_session_id(request, body.session_id)
        traceparent = request.headers.get("traceparent")
        ask = Ask(messages, system, session_id, Origin(traceparent=traceparent))
        return run_view(await runs.start(ask))

    @router.get("/v1/runs")
    async def list_runs(session_id: str | None = None) -> dict[str, Any]:
        entries = await runs.entries(session_id)
        return {"object": "list", "data": [run_view(entry) for entry in entries]}

    @router.get("/v1/runs/{run_id}")
    async def read(run_id: str) -> dict[str, Any]:
        return run_view(await runs.entry(run_id), await runs.records(run_id))

    @router.get("/v1/runs/{run_id}/events")
    async def events(request: Request, run_id: str, starting_after: str = "") -> Response:
        after = _position(request.headers.get("last-event-id") or starting_after)
        await runs.entry(run_id)  # an unknown run is an HTTP error, not an empty stream
        return SseResponse(_frames(runs, run_id, after), {"X-Run-ID": run_id})

    @router.post("/v1/runs/{run_id}/cancel")
    async def cancel(run_id: str) -> dict[str, Any]:
        entry = await runs.cancel(run_id)
        return run_view(entry, await runs.records(run_id))

    return router


async def _frames(runs: Runs, run_id: str, after: int) -> AsyncGenerator[bytes]:
    async with aclosing(runs.follow(run_id, after)) as batches:
        async for batch in batches:
            yield b"".join(
                frame(notice_view(item), event=item.type)
                if isinstance(item, Notice)
                else frame(event_view(item), event=item.event_type, seq=item.seq)
                for item in batch
            )


def _messages(body: RunBody) -> tuple[tuple[Message, ...], str]:
    if (body.input is None) == (body.messages is None):
        raise InvalidRequest("send either input or messages", param="input")
    if body.messages is not None:
        return read_messages(body.messages)
    if not body.input or not body.input.strip():
        raise InvalidRequest("input is empty", param="input")
    return (Message("user", body.input),), ""


def _position(text: str) -> int:
    """Read where to go on; nothing means from the start."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise InvalidRequest(
            "Last-Event-ID and starting_after are the id of an event: a whole number",
            param="starting_after",
        )
    return int(text)
