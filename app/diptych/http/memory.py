"""`/memory/*`: the events of sessions, a view of the event log for people and tests."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from diptych.errors import RequestError, RunLost, RunNotFound
from diptych.http.guarded_runs import GuardedMemory
from diptych.http.openapi import operations
from diptych.http.views import event_view, session_view
from diptych.loop.codec import NOT_IN_MEMORY_VIEW, Record
from diptych.ports.entries import RunEntry
from diptych.ports.event_log import EventLog

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
_RUNS_AT_ONCE = 20
_RECORDS_AT_ONCE = 1_000

SessionId = Annotated[str | None, Query(description="Only the events of this session.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many events, at most.")]
SessionLimit = Annotated[
    int, Query(ge=1, le=MAX_LIMIT, description="How many sessions, at most: those used last.")
]


def memory_routes(name: str, memory: GuardedMemory) -> APIRouter:
    """Give the routes of the agent called `name`."""
    router = APIRouter()

    @router.get("/memory/events", **operations.LIST_EVENTS)
    async def events(
        session_id: SessionId = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> dict[str, Any]:
        shown = [event_view(record) for record in await last_events(memory, session_id, limit)]
        total = await memory.count_events(session_id)
        return {"agent": name, "events": shown, "total": total}

    @router.get("/memory/sessions", **operations.LIST_SESSIONS)
    async def list_sessions(limit: SessionLimit = DEFAULT_LIMIT) -> dict[str, Any]:
        entries, total = await memory.sessions(limit)
        shown = [session_view(entry) for entry in entries]
        return {"agent": name, "sessions": shown, "total": total}

    @router.delete(
        "/memory/sessions/{session_id:path}", status_code=204, **operations.DELETE_SESSION
    )
    async def delete(session_id: str) -> Response:
        if not await memory.delete(session_id):
            raise RequestError("there is no such session", code="session_not_found")
        return Response(status_code=204)

    return router


async def session_events(log: EventLog, session_id: str) -> list[Record]:
    """Give the events of a session without those that only the runtime needs."""
    entries = await log.entries(session_id)
    return [
        record
        for entry in reversed(entries)
        for record in await log.read(entry.run_id)
        if record.event_type not in NOT_IN_MEMORY_VIEW
    ]


async def last_events(memory: GuardedMemory, session_id: str | None, limit: int) -> list[Record]:
    """Give the newest events of a session, or of all, by the order of their runs."""
    newest: list[Record] = []  # the newest first
    before: str | None = None
    while len(newest) < limit:
        count = min(_RUNS_AT_ONCE, limit - len(newest))
        entries = await memory.entries(session_id, before=before, limit=count)
        tails = await asyncio.gather(
            *(_tail(memory, entry, limit - len(newest)) for entry in entries)
        )
        for tail in tails:
            newest += tail
        if len(entries) < count:
            break
        before = entries[-1].run_id
    return newest[:limit][::-1]


async def _tail(memory: GuardedMemory, entry: RunEntry, limit: int) -> Sequence[Record]:
    """Give the newest events of a run, the newest first; none if the run has gone since."""
    found: list[Record] = []
    end, count = entry.seq, min(2 * limit, _RECORDS_AT_ONCE)
    with suppress(RunLost, RunNotFound):
        while end > 0 and len(found) < limit:
            start = max(0, end - count)
            records = await memory.read(entry.run_id, start, end - start)
            found += [r for r in reversed(records) if r.event_type not in NOT_IN_MEMORY_VIEW]
            end, count = start, _RECORDS_AT_ONCE
    return found[:limit]
