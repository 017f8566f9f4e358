"""`/memory/*`: the events of sessions, a view of the log for people and tests."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from diptych.core.codec import NOT_IN_MEMORY_VIEW, Record, shown
from diptych.core.errors import InvalidRequest, RequestError, RunLost, RunNotFound
from diptych.http.bodies import json_response, json_router
from diptych.http.guarded_runs import GuardedRuns, GuardedSessions, pages_back
from diptych.http.openapi import reply
from diptych.http.views import event_view, session_view
from diptych.net.memory_budget import current_share, record_size
from diptych.ports.stores import EventLog

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_PAGE_SIZE = 8 * 2**20  # bytes that the events of one reply may take, estimated
MAX_FIRST_WORDS = 200  # sessions whose first message is read
_RUNS_AT_ONCE = 20
_MAX_DIGITS = 15  # of a seq
_UNKNOWN_EVENT = "before is what another reply gave; start again without it"

SessionId = Annotated[str | None, Query(description="Only the events of this session.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many events, at most.")]
Before = Annotated[
    str | None, Query(description="Only older events: the `next_before` of another reply.")
]
SessionLimit = Annotated[
    int, Query(ge=1, le=MAX_LIMIT, description="How many sessions, at most: those used last.")
]


FirstWords = Annotated[
    bool,
    Query(description=f"Show how each of the last {MAX_FIRST_WORDS} sessions of the list began."),
]


def memory_routes(name: str, runs: GuardedRuns, sessions: GuardedSessions) -> APIRouter:
    """Return the routes of the agent called `name`."""
    router = json_router()

    @router.get("/memory/events", **reply("EventList", "The events."))
    async def list_events(
        session_id: SessionId = None,
        limit: Limit = DEFAULT_LIMIT,
        before: Before = None,
    ) -> Response:
        """Read the last `limit` events of a session, or of all; empty for an unknown session.

        Large events make shorter pages; `before` reads earlier ones.
        """
        found, earlier = await _last_events(runs, session_id, limit, before)
        total = await sessions.count_events(session_id)
        shown = [event_view(record) for record in found]
        view = {"agent": name, "events": shown, "total": total, "next_before": earlier}
        return json_response(view)

    @router.get("/memory/sessions", **reply("SessionList", "The sessions."))
    async def list_sessions(
        limit: SessionLimit = DEFAULT_LIMIT, *, first_words: FirstWords = False
    ) -> dict[str, Any]:
        """List the sessions used last, the oldest first; `total` counts all of them."""
        entries, total = await sessions.sessions(limit)
        shown = [session_view(entry) for entry in entries]
        if first_words:
            for entry, view in list(zip(entries, shown, strict=True))[-MAX_FIRST_WORDS:]:
                view["first_words"] = await sessions.first_words(entry)
        return {"agent": name, "sessions": shown, "total": total}

    @router.delete(
        "/memory/sessions/{session_id:path}",
        **reply("", "The session is forgotten.", 409, status=204),
    )
    async def delete_session(session_id: str) -> Response:
        """Delete a session with all its runs, unless one is unfinished."""
        if not await sessions.delete(session_id):
            raise RequestError("there is no such session", code="session_not_found")
        return Response(status_code=204)

    return router


async def session_events(log: EventLog, session_id: str) -> list[Record]:
    """Return the events of a session without those that only the runtime needs."""
    entries = await log.entries(session_id)
    return [
        shown(record)
        for entry in reversed(entries)
        for record in await log.read(entry.run_id)
        if record.event_type not in NOT_IN_MEMORY_VIEW
    ]


async def _last_events(
    runs: GuardedRuns, session_id: str | None, limit: int, before: str | None
) -> tuple[list[Record], str | None]:
    """Return the newest events of a session, or of all, in the order of their runs.

    They end before the event `before`. The second value is the first event's id if earlier ones may
    exist; large events make the page shorter. Raises `InvalidRequest`.
    """
    newest: list[Record] = []  # the newest first
    share, held = current_share(), 0
    async for record in _backwards(runs, session_id, before, limit):
        size = record_size(record)
        if len(newest) == limit or (newest and held + size > MAX_PAGE_SIZE):
            return newest[::-1], f"{newest[-1].run_id}:{newest[-1].seq}"
        share.admit(size)
        held += size
        newest.append(record)
    return newest[::-1], None


async def _backwards(
    runs: GuardedRuns, session_id: str | None, before: str | None, limit: int
) -> AsyncGenerator[Record]:
    """Yield the events of `/memory/events`, newest first."""
    run_id: str | None = None
    if before is not None:
        run_id, _, seq = before.rpartition(":")
        try:
            entry = await runs.entry(run_id)
            await runs.entries(session_id, before=run_id, limit=1)  # whether the list has it
        except (RunNotFound, RunLost):
            raise InvalidRequest(_UNKNOWN_EVENT, param="before") from None
        if not (seq.isascii() and seq.isdigit() and len(seq) <= _MAX_DIGITS):
            raise InvalidRequest(_UNKNOWN_EVENT, param="before")
        async for record in _of_run(runs, run_id, min(int(seq) - 1, entry.seq)):
            yield record
    count = min(_RUNS_AT_ONCE, limit)
    while entries := await runs.entries(session_id, before=run_id, limit=count):
        for entry in entries:
            async for record in _of_run(runs, entry.run_id, entry.seq):
                yield record
        run_id = entries[-1].run_id


async def _of_run(runs: GuardedRuns, run_id: str, end: int) -> AsyncGenerator[Record]:
    """Return a run's events up to a seq, newest first; empty if the run has been deleted."""
    with suppress(RunLost, RunNotFound):
        async for page in pages_back(partial(runs.page, run_id), end):
            for record in reversed(page):
                if record.event_type not in NOT_IN_MEMORY_VIEW:
                    yield record
