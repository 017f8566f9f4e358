"""`/v1/runs`: start a run, list and read runs, follow one's events, steer and cancel it.

Not here: how a run's events become frames (`run_events`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from diptych.errors import InvalidRequest
from diptych.http.bodies import MessageBody, RunBody, read_body, read_messages, read_session_id
from diptych.http.disconnect import leave
from diptych.http.idempotency import read_once
from diptych.http.runs.event_stream import event_frames
from diptych.http.sse_response import SseResponse
from diptych.http.views import run_view
from diptych.loop.codec import TERMINAL
from diptych.loop.events import Origin, Steered
from diptych.loop.messages import Message
from diptych.ports.entries import RunEntry
from diptych.runtime.request import RunRequest
from diptych.runtime.service import RunService

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
_DIGITS = 15  # of the largest seq that anyone will reach

Status = Literal["queued", "running", "completed", "failed", "aborted", "max_steps"]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]


def run_routes(runs: RunService) -> APIRouter:
    """Give the routes under `/v1/runs`."""
    router = APIRouter()

    @router.post("/v1/runs", status_code=202)
    async def start(request: Request) -> dict[str, Any]:
        return run_view(await runs.start(await _read_ask(request)))

    @router.get("/v1/runs")
    async def list_runs(
        session_id: str | None = None,
        status: Status | None = None,
        limit: Limit = DEFAULT_LIMIT,
        before: str | None = None,
    ) -> dict[str, Any]:
        entries = _before(await runs.entries(session_id), before)
        found = [entry for entry in entries if status in (None, entry.status)]
        shown = [run_view(entry) for entry in found[-limit:]]
        return {"object": "list", "data": shown, "has_more": len(found) > limit}

    @router.get("/v1/runs/{run_id}")
    async def read(run_id: str) -> dict[str, Any]:
        return run_view(await runs.entry(run_id), await runs.records(run_id))

    @router.get("/v1/runs/{run_id}/events")
    async def events(request: Request, run_id: str, starting_after: str = "") -> Response:
        after = _position(request.headers.get("last-event-id") or starting_after)
        await runs.entry(run_id)  # an unknown run is an HTTP error, not an empty stream
        frames = event_frames(runs, run_id, after)
        return SseResponse(frames, {"X-Run-ID": run_id}, partial(leave, runs, run_id))

    @router.post("/v1/runs/{run_id}/steer", status_code=202)
    async def steer(request: Request, run_id: str) -> dict[str, Any]:
        return run_view(await runs.steer(run_id, await _read_message(request)))

    @router.post("/v1/runs/{run_id}/cancel")
    async def cancel(run_id: str) -> Response:
        entry = await runs.cancel(run_id)
        view = run_view(entry, await runs.records(run_id))
        has_ended = view["status"] in TERMINAL
        return Response(orjson.dumps(view), 200 if has_ended else 202, None, "application/json")

    return router


async def _read_ask(request: Request) -> RunRequest:
    body = await read_body(request, RunBody)
    messages, system = _messages(body)
    session_id = read_session_id(request, body.session_id)
    origin = Origin(
        traceparent=request.headers.get("traceparent"),
        cancels_on_disconnect=body.on_disconnect == "cancel",
    )
    return RunRequest(messages, system, session_id, origin, await read_once(request, session_id))


async def _read_message(request: Request) -> Steered:
    body = await read_body(request, MessageBody)
    if not body.message.strip():
        raise InvalidRequest("message is empty", param="message")
    idempotency_key = await read_once(request, None)
    return Steered(body.message, idempotency_key.key if idempotency_key else f"http:{uuid4().hex}")


def _messages(body: RunBody) -> tuple[tuple[Message, ...], str]:
    if (body.input is None) == (body.messages is None):
        raise InvalidRequest("send either input or messages", param="input")
    if body.messages is not None:
        return read_messages(body.messages)
    if not body.input or not body.input.strip():
        raise InvalidRequest("input is empty", param="input")
    return (Message("user", body.input),), ""


def _before(entries: Sequence[RunEntry], run_id: str | None) -> Sequence[RunEntry]:
    """Give the runs that are older than one of them. Raises `InvalidRequest` if it is none."""
    if run_id is None:
        return entries
    ids = [entry.run_id for entry in entries]
    if run_id not in ids:
        raise InvalidRequest(
            "before is the id of a run of this list; start again without it", param="before"
        )
    return entries[: ids.index(run_id)]


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
