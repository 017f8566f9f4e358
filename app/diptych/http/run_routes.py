"""`/v1/runs`: start, list, read, resume and cancel runs, and read their events."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from diptych.budgets.agent_budgets import AgentBudgets
from diptych.core.codec import TERMINAL
from diptych.core.errors import InvalidRequest, RunNotFound
from diptych.core.messages import Message
from diptych.http.answer_form import check_schema
from diptych.http.bodies import ResumeBody, RunBody, read_body
from diptych.http.budgets import budget_view, read_budget
from diptych.http.disconnect import cancel_if_abandoned
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.messages import Conversation, read_conversation
from diptych.http.openapi import operations
from diptych.http.run_request import origin, read_idempotency_key, read_run_request
from diptych.http.runs.event_stream import event_frames
from diptych.http.sse_response import SseResponse
from diptych.http.views import queue_view, run_view
from diptych.ports.entries import RunEntry
from diptych.runs.request import RunRequest

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
_MAX_DIGITS = 15  # of a seq

Status = Annotated[
    Literal["queued", "running", "input-required", "completed", "failed", "aborted", "max_steps"]
    | None,
    Query(description="Only runs with this status."),
]
SessionId = Annotated[str | None, Query(description="Only the runs of this session.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many runs, at most.")]
Before = Annotated[str | None, Query(description="Only runs older than the one with this id.")]
StartingAfter = Annotated[
    str,
    Query(
        description="The id of the last event that the caller has; none means from the start.",
        json_schema_extra={"pattern": "^[0-9]{0,15}$"},
    ),
]


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """What a run may ask for: what its model takes besides text, and budgets.

    Without `budgets` nothing is counted.
    """

    inputs: tuple[str, ...] = ()
    budgets: AgentBudgets | None = None


def run_routes(runs: GuardedRuns, policy: RunPolicy) -> APIRouter:
    """Give the routes under `/v1/runs`."""
    router = APIRouter()

    @router.post("/v1/runs", status_code=202, **operations.START_RUN)
    async def start(request: Request) -> dict[str, Any]:
        return run_view(await runs.start(await _read_start(request, policy)))

    @router.get("/v1/runs", **operations.LIST_RUNS)
    async def list_runs(
        session_id: SessionId = None,
        status: Status = None,
        limit: Limit = DEFAULT_LIMIT,
        before: Before = None,
    ) -> dict[str, Any]:
        found = await _entries(runs, session_id, status, before, limit + 1)
        shown = [run_view(entry) for entry in reversed(found[:limit])]
        return {"object": "list", "data": shown, "has_more": len(found) > limit}

    @router.get("/v1/runs/{run_id}", **operations.READ_RUN)
    async def read(run_id: str) -> Response:
        entry, records = await runs.entry(run_id), await runs.records(run_id)
        session_id = records[0].session_id if records else ""
        view = run_view(entry, records) | await budget_view(records, session_id, policy.budgets)
        if view["status"] not in TERMINAL:
            view |= queue_view(await runs.queued_messages(run_id))
        return _json(view)

    @router.get("/v1/runs/{run_id}/events", **operations.READ_RUN_EVENTS)
    async def events(request: Request, run_id: str, starting_after: StartingAfter = "") -> Response:
        after = _read_seq(request.headers.get("last-event-id") or starting_after)
        await runs.entry(run_id)  # an unknown run is an HTTP error, not an empty stream
        frames = event_frames(runs, run_id, after)
        return SseResponse(frames, {"X-Run-ID": run_id}, partial(cancel_if_abandoned, runs, run_id))

    @router.post("/v1/runs/{run_id}/resume", status_code=202, **operations.RESUME_RUN)
    async def resume(request: Request, run_id: str) -> dict[str, Any]:
        max_steps = await _read_resuming(request)
        entry = await runs.resume(run_id, origin(request.headers), max_steps)
        return {**run_view(entry), "resumes": run_id}

    @router.post("/v1/runs/{run_id}/cancel", **operations.CANCEL_RUN)
    async def cancel(run_id: str) -> Response:
        view = await _cancelled(runs, run_id)
        has_ended = view["status"] in TERMINAL
        return _json(view, 200 if has_ended else 202)

    return router


async def _cancelled(runs: GuardedRuns, run_id: str) -> dict[str, Any]:
    entry = await runs.cancel(run_id)
    try:
        return run_view(entry, await runs.records(run_id))
    except RunNotFound:  # the right to cancel it is not that to read it
        return run_view(entry)


def _json(view: dict[str, Any], status: int = 200) -> Response:
    """Answer with a view that may be large: FastAPI would copy it twice, in ten times the time."""
    return Response(orjson.dumps(view), status, None, "application/json")


async def _read_start(request: Request, policy: RunPolicy) -> RunRequest:
    body = await read_body(request, RunBody)
    schema = None
    if body.output_schema is not None:
        schema = await asyncio.to_thread(check_schema, body.output_schema, "output_schema")
    run = await read_run_request(
        request,
        _conversation(body, policy.inputs),
        session_id=body.session_id,
        on_disconnect=body.on_disconnect,
    )
    return replace(
        run,
        output_schema=schema,
        max_steps=body.max_steps,
        when_busy=body.when_busy,
        budget=read_budget(body.budget, policy.budgets),
    )


async def _read_resuming(request: Request) -> int | None:
    if not await request.body():
        return None
    body = await read_body(request, ResumeBody)
    await read_idempotency_key(request, None)  # any does: a run is resumed only once
    return body.max_steps


def _conversation(body: RunBody, inputs: tuple[str, ...]) -> Conversation:
    if (body.input is None) == (body.messages is None):
        raise InvalidRequest("send either input or messages", param="input")
    if body.messages is not None:
        return read_conversation(body.messages, inputs)
    if not body.input or not body.input.strip():
        raise InvalidRequest("input is empty", param="input")
    return Conversation((Message("user", body.input),))


async def _entries(
    runs: GuardedRuns, session_id: str | None, status: str | None, before: str | None, limit: int
) -> Sequence[RunEntry]:
    try:
        return await runs.entries(session_id, status=status, before=before, limit=limit)
    except RunNotFound:
        message = "before is the id of a run of this list; start again without it"
        raise InvalidRequest(message, param="before") from None


def _read_seq(text: str) -> int:
    """Read the id of the last event that the caller has; no text means that it has none."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(
            "Last-Event-ID and starting_after are the id of an event: a whole number",
            param="starting_after",
        )
    return int(text)
