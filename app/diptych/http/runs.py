"""`/v1/runs`: runs, messages to them, and event streams.

A record's frame has its seq as `id` and the same bytes for every reader at any time. Notices,
`reset`, `handed_over` and `error` are live only and have no `id`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4
from weakref import WeakValueDictionary

from fastapi import APIRouter, Query, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from diptych.budgets.agent_budgets import AgentBudgets
from diptych.core.codec import TERMINAL, Record, record_chars
from diptych.core.errors import InvalidRequest, RequestError, RunNotFound, StoreError
from diptych.core.events import MessageQueued
from diptych.core.messages import Message
from diptych.http.answer_form import check_schema
from diptych.http.bodies import Body, RunOptions, json_response, json_router
from diptych.http.budgets import BudgetBody, budget_view, read_budget
from diptych.http.errors import request_error_body, run_error_body, store_failure
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.messages import Conversation, Messages, read_conversation
from diptych.http.openapi import Events, reply
from diptych.http.run_reader import cancel_if_abandoned
from diptych.http.run_request import origin, read_idempotency_key, read_run_request
from diptych.http.sse_response import SseResponse
from diptych.http.views import event_view, notice_view, queue_view, run_view
from diptych.net.sse import frame
from diptych.ports import Item
from diptych.ports.entries import RunEntry
from diptych.runs.request import RunRequest

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
LARGE_RECORD = 2**16  # characters, from which a record's readers share one frame
_MAX_DIGITS = 15  # of a seq
_logger = logging.getLogger(__name__)

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
        description="The id of the caller's last event; none means from the start.",
        json_schema_extra={"pattern": "^[0-9]{0,15}$"},
    ),
]
_EVENTS = Events(
    "Each `data:` is an Event; `event:` is its type and `id:` its seq. Frames without an `id` "
    "are live only: notices, `reset`, `handed_over`, `error`.",
    'event: completed\nid: 5\ndata: {"event_type":"completed","seq":5,"run_id":"run-1",'
    '"session_id":"session-1","timestamp":"2026-01-01T00:00:00Z","content":"",'
    '"metadata":{"finish_reason":"stop"}}\n\n',
)
_WRITES = (409, 422)  # a conflict, another request with the same key
_STARTED = reply("Run", "The run, or the one that the same key started.", *_WRITES, status=202)
_RESUMED = reply("Run", "The new run; `resumes` is the id of the old one.", *_WRITES, status=202)
_SENT = reply("Run", "The run.", *_WRITES, status=202)
_CANCELLED = reply(
    "Run", "The run has ended.", accepted="The run will end; that takes longer than 15 s."
)


class RunBody(RunOptions):
    """`POST /v1/runs`: either `input` or `messages`. A field that is null counts as absent."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": kind}}}
                for name, kind in (("input", "string"), ("messages", "array"))
            ]
        },
    )

    input: str | None = Field(None, description="The user's message.")
    messages: Messages | None = Field(None, description="A conversation, in place of `input`.")
    output_schema: dict[str, Any] | None = Field(
        None, description="A JSON Schema that the answer fits, as JSON."
    )
    budget: BudgetBody | None = Field(None, description="Limits of this run.")


class ResumeBody(Body):
    """`POST /v1/runs/{id}/resume`; no body means `{}`."""

    model_config = ConfigDict(extra="forbid")

    max_steps: int | None = Field(
        None, ge=1, description="Max steps of the new run; at most the manifest's `maxSteps`."
    )


class MessageBody(Body):
    """`POST /v1/runs/{id}/steer` and `/follow-up`."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(
        description="Text that is not blank.", json_schema_extra={"pattern": r"\S"}
    )


def run_routes(
    runs: GuardedRuns, inputs: tuple[str, ...], budgets: AgentBudgets | None
) -> APIRouter:
    """Return the routes that start, list, read, resume and cancel runs.

    `inputs` are the model's input kinds besides text.
    """
    router = json_router()

    @router.post("/v1/runs", **_STARTED)
    async def start_run(request: Request, body: RunBody) -> dict[str, Any]:
        """Start a run, which goes on without readers. Replies once it is recorded."""
        return run_view(await runs.start(await _read_start(request, body, inputs, budgets)))

    @router.get("/v1/runs", **reply("RunList", "A page of runs."))
    async def list_runs(
        session_id: SessionId = None,
        status: Status = None,
        limit: Limit = DEFAULT_LIMIT,
        before: Before = None,
    ) -> dict[str, Any]:
        """List the newest `limit` runs, the oldest first."""
        found = await _entries(runs, session_id, status, before, limit + 1)
        shown = [run_view(entry) for entry in reversed(found[:limit])]
        return {"object": "list", "data": shown, "has_more": len(found) > limit}

    @router.get("/v1/runs/{run_id}", **reply("Run", "The run."))
    async def read_run(run_id: str) -> Response:
        """Read a run with its outcome, or its answer so far."""
        entry, records = await runs.entry(run_id), await runs.records(run_id)
        session_id = records[0].session_id if records else ""
        view = run_view(entry, records) | await budget_view(records, session_id, budgets)
        if view["status"] not in TERMINAL:
            view |= queue_view(await runs.queued_messages(run_id))
        return json_response(view)

    @router.get(
        "/v1/runs/{run_id}/events",
        **reply("", "The events, up to the terminal one.", events=_EVENTS),
    )
    async def read_run_events(
        request: Request, run_id: str, starting_after: StartingAfter = ""
    ) -> Response:
        """Read the events after an event, recorded then live, until the run ends."""
        after = _read_seq(request.headers.get("last-event-id") or starting_after)
        await runs.entry(run_id)  # an unknown run is an HTTP error, not an empty stream
        frames = event_frames(runs, run_id, after)
        return SseResponse(frames, {"X-Run-ID": run_id}, partial(cancel_if_abandoned, runs, run_id))

    @router.post("/v1/runs/{run_id}/resume", **_RESUMED)
    async def resume_run(
        request: Request, run_id: str, body: ResumeBody | None = None
    ) -> dict[str, Any]:
        """Resume a failed or aborted run as a new run without a new message.

        No call is repeated. A second request returns the same new run.
        """
        await read_idempotency_key(request)  # any does
        max_steps = body.max_steps if body else None
        entry = await runs.resume(run_id, origin(request.headers), max_steps)
        return {**run_view(entry), "resumes": run_id}

    @router.post("/v1/runs/{run_id}/cancel", **_CANCELLED)
    async def cancel_run(run_id: str) -> Response:
        """Abort a run, whichever replica executes it. An ended run is left unchanged."""
        entry = await runs.cancel(run_id)
        try:
            view = run_view(entry, await runs.records(run_id))
        except RunNotFound:  # the right to cancel it is not that to read it
            view = run_view(entry)
        return json_response(view, 200 if view["status"] in TERMINAL else 202)

    _add_queue_routes(router, runs)
    return router


def _add_queue_routes(router: APIRouter, runs: GuardedRuns) -> None:
    """Add the routes that send messages to a run."""

    @router.post("/v1/runs/{run_id}/steer", **_SENT)
    async def steer_run(request: Request, run_id: str, body: MessageBody) -> dict[str, Any]:
        """Add a message to a run's conversation, whichever replica executes it."""
        return run_view(await runs.send_message(run_id, await _message(request, body)))

    @router.post("/v1/runs/{run_id}/follow-up", **_SENT)
    async def follow_up_run(request: Request, run_id: str, body: MessageBody) -> dict[str, Any]:
        """Queue a message that starts the run's next turn after this turn's answer."""
        message = replace(await _message(request, body), is_follow_up=True)
        return run_view(await runs.send_message(run_id, message))

    @router.delete("/v1/runs/{run_id}/queue", **reply("ClearedQueue", "The dropped messages.", 409))
    async def clear_queue(run_id: str) -> dict[str, Any]:
        """Drop a run's queued messages. Messages that joined the conversation stay."""
        return queue_view(await runs.clear_messages(run_id))


async def _message(request: Request, body: MessageBody) -> MessageQueued:
    if not body.message.strip():
        raise InvalidRequest("message is empty", param="message")
    key = await read_idempotency_key(request)
    return MessageQueued(body.message, key.key if key else f"http:{uuid4().hex}")


async def _read_start(
    request: Request, body: RunBody, inputs: tuple[str, ...], budgets: AgentBudgets | None
) -> RunRequest:
    schema = None
    if body.output_schema is not None:
        schema = await asyncio.to_thread(check_schema, body.output_schema, "output_schema")
    run = await read_run_request(request, _conversation(body, inputs), body)
    return replace(run, output_schema=schema, budget=read_budget(body.budget, budgets))


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
    """Parse the caller's last event id; None without one."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(
            "Last-Event-ID and starting_after are the id of an event: a whole number",
            param="starting_after",
        )
    return int(text)


# The events


async def event_frames(runs: GuardedRuns, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """Yield the frames of a run's events after a seq, recorded then live, one chunk per batch."""
    try:
        async with aclosing(await runs.subscribe(run_id, after)) as batches:
            async for batch in batches:
                frames = _frames(batch)
                del batch  # for a slow reader no more is held than its frames
                for part in frames:
                    yield part.content if isinstance(part, _SharedFrame) else part
    except StoreError as error:
        _logger.error("the store failed under a stream: %s", error)
        yield frame(run_error_body(*store_failure(error)), event="error")
    except RequestError as error:
        yield frame(request_error_body(error), event="error")


class _SharedFrame:
    """A frame shared by several readers; bytes cannot be weakly referenced."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content


_shared_frames: WeakValueDictionary[tuple[str, int, float], _SharedFrame] = WeakValueDictionary()
"""The frames of large records that are being read; a slow reader holds one for long."""


def _frames(batch: Sequence[Item]) -> Sequence[bytes | _SharedFrame]:
    """Frame a batch; frames between large records are joined."""
    parts: list[bytes | _SharedFrame] = []
    small: list[bytes] = []
    for item in batch:
        if isinstance(item, Record) and record_chars(item) >= LARGE_RECORD:
            parts += [b"".join(small), _shared_frame(item)]
            small = []
        else:
            small.append(_frame(item))
    return [*parts, b"".join(small)]


def _shared_frame(record: Record) -> _SharedFrame:
    key = (record.run_id, record.seq, record.timestamp)
    shared = _shared_frames.get(key)
    if shared is None:
        shared = _shared_frames[key] = _SharedFrame(_frame(record))
    return shared


def _frame(item: Item) -> bytes:
    if isinstance(item, Record):
        return frame(event_view(item), event=item.event_type, seq=item.seq)
    return frame(notice_view(item), event=item.type)
