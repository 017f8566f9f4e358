"""`/memory/*`: the events of sessions, a view of the event log for people and tests."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from diptych.errors import RequestError
from diptych.http.openapi import operations
from diptych.http.views import event_view, session_view
from diptych.loop.codec import NOT_IN_MEMORY_VIEW, Record
from diptych.ports import EventLog, Sessions

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000

SessionId = Annotated[str | None, Query(description="Only the events of this session.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many events, at most.")]


def memory_routes(name: str, log: EventLog, sessions: Sessions) -> APIRouter:
    """Give the routes of the agent called `name`."""
    router = APIRouter()

    @router.get("/memory/events", **operations.LIST_EVENTS)
    async def events(
        session_id: SessionId = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> dict[str, Any]:
        found = await session_events(log, session_id)
        shown = [event_view(record) for record in found[-limit:]]
        return {"agent": name, "events": shown, "total": len(found)}

    @router.get("/memory/sessions", **operations.LIST_SESSIONS)
    async def list_sessions() -> dict[str, Any]:
        found = await sessions.sessions()
        shown = [session_view(entry) for entry in found]
        return {"agent": name, "sessions": shown, "total": len(found)}

    @router.delete("/memory/sessions/{session_id}", status_code=204, **operations.DELETE_SESSION)
    async def delete(session_id: str) -> Response:
        if not await sessions.delete(session_id):
            raise RequestError("there is no such session", code="session_not_found")
        return Response(status_code=204)

    return router


async def session_events(log: EventLog, session_id: str | None) -> list[Record]:
    """Give the events of a session, or of all, without those that only the runtime needs."""
    return [
        record
        for entry in await log.entries(session_id)
        for record in await log.read(entry.run_id)
        if record.event_type not in NOT_IN_MEMORY_VIEW
    ]
