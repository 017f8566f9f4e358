"""`/health`, `/ready` and `/metrics`, for the platform.

`/ready` tells everybody whether the agent is ready; only the operator and callers with `read` see
why not and what is missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from diptych.access.caller import current_caller
from diptych.access.grants import Right
from diptych.core.catalog import Unavailable
from diptych.core.events import CallFormat
from diptych.http.bodies import json_response, json_router
from diptych.http.openapi import reply
from diptych.http.views import timestamp


@dataclass(frozen=True, slots=True)
class ScheduledEnd:
    """How the last run of a schedule ended: its terminal event, and the time in Unix seconds."""

    schedule: str
    run_id: str
    end: str
    ended_at: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the pod takes work, why not, its unavailable dependencies, and notes for people.

    `action_format` is the call format of runs that start now. `scheduled` is of runs that ended
    in this process.
    """

    is_ready: bool
    reason: str = ""
    unavailable: Sequence[Unavailable] = ()
    notes: Sequence[str] = ()
    action_format: CallFormat = "json"
    scheduled: Sequence[ScheduledEnd] = ()


_READY = reply("Ready", "It takes work.")
_READY["responses"][503] = reply("Ready", "It takes none now.")["responses"][200]


def health_routes(name: str, readiness: Callable[[], Readiness]) -> APIRouter:
    """Return the liveness and readiness routes of the agent `name`."""
    router = json_router()

    @router.get("/health", **reply("Health", "It is alive."))
    async def health() -> dict[str, str]:
        """Liveness: answers as long as the process serves."""
        return {"status": "ok", "agent": name}

    @router.get("/ready", **_READY)
    async def ready() -> Response:
        """Readiness: every tool server and agent has been tried once.

        Callers with `read` see what is missing.
        """
        now = readiness()
        status = "ready" if now.is_ready else "not ready"
        body: dict[str, object] = {"status": status, "agent": name}
        if current_caller().rights & {Right.READ, Right.STATUS}:
            body |= _details(now)
        return json_response(body, 200 if now.is_ready else 503)

    for path, endpoint in (("/health", health), ("/ready", ready)):  # as uptime monitors ask
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    return router


def metrics_routes(metrics: Callable[[], tuple[bytes, str]]) -> APIRouter:
    """Return the metrics route; `metrics` returns the text and its media type."""
    router = json_router()

    @router.get(
        "/metrics",
        name="metrics",
        response_class=PlainTextResponse,
        response_description="The metrics.",
    )
    async def metrics_text() -> Response:
        """Read the metrics in Prometheus's text format."""
        text, media_type = metrics()
        return Response(text, media_type=media_type)

    return router


def _details(now: Readiness) -> dict[str, object]:
    return {
        "reason": now.reason,
        "missing": [unavailable_value(item) for item in now.unavailable],
        "notes": list(now.notes),
        "action_format": now.action_format,
        "scheduled": [scheduled_value(each) for each in now.scheduled],
    }


def scheduled_value(end: ScheduledEnd) -> dict[str, str]:
    """Return the end of a schedule's last run as `/ready` shows it."""
    return {
        "schedule": end.schedule,
        "run_id": end.run_id,
        "end": end.end,
        "ended_at": timestamp(end.ended_at),
    }


def unavailable_value(item: Unavailable) -> dict[str, str]:
    """Return an unavailable dependency as `/ready` shows it."""
    return {"kind": item.kind, "name": item.name, "reason": item.reason}
