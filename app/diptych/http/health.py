"""`/health`, `/ready` and `/metrics`: what a platform asks a pod.

Whether it is ready, `/ready` tells everybody; why, and what is missing, who may read all or is the
operator (access.md "How refusals look").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from diptych.access.caller import current_caller
from diptych.access.grants import Right
from diptych.core.catalog import Unavailable
from diptych.core.events import CallFormat
from diptych.http.openapi import operations


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the pod takes work, why not, what is unavailable, and notes for people.

    `action_format` is the format in which runs that start now ask for calls.
    """

    is_ready: bool
    reason: str = ""
    unavailable: Sequence[Unavailable] = ()
    notes: Sequence[str] = ()
    action_format: CallFormat = "json"


def health_routes(name: str, readiness: Callable[[], Readiness]) -> APIRouter:
    """Give the routes that say whether the agent called `name` lives and takes work."""
    router = APIRouter()

    @router.get("/health", **operations.HEALTH)
    async def health() -> dict[str, str]:
        return {"status": "ok", "agent": name}

    @router.get("/ready", **operations.READY)
    async def ready() -> Response:
        now = readiness()
        status = "ready" if now.is_ready else "not ready"
        body: dict[str, object] = {"status": status, "agent": name}
        if current_caller().rights & {Right.READ, Right.STATUS}:
            body |= _details(now)
        code = 200 if now.is_ready else 503
        return Response(orjson.dumps(body), code, media_type="application/json")

    for path, endpoint in (("/health", health), ("/ready", ready)):  # as uptime monitors ask
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    return router


def metrics_routes(metrics: Callable[[], tuple[bytes, str]]) -> APIRouter:
    """Give the route of the metrics; `metrics` gives a text and its media type."""
    router = APIRouter()

    @router.get("/metrics", **operations.METRICS)
    async def show_metrics() -> Response:
        text, media_type = metrics()
        return Response(text, media_type=media_type)

    return router


def _details(now: Readiness) -> dict[str, object]:
    return {
        "reason": now.reason,
        "missing": [unavailable_value(item) for item in now.unavailable],
        "notes": list(now.notes),
        "action_format": now.action_format,
    }


def unavailable_value(item: Unavailable) -> dict[str, str]:
    """Give what `/ready` says of something unavailable."""
    return {"kind": item.kind, "name": item.name, "reason": item.reason}
