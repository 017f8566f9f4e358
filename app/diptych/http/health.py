"""`/health`, `/ready` and `/metrics`: what a platform asks a pod."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from diptych.http.openapi import operations
from diptych.loop.catalog import Unavailable


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the pod takes work, why not, which parts are missing, and notes for people."""

    is_ready: bool
    reason: str = ""
    missing: Sequence[Unavailable] = ()
    notes: Sequence[str] = ()


def health_routes(
    name: str, readiness: Callable[[], Readiness], metrics: Callable[[], tuple[bytes, str]]
) -> APIRouter:
    """Give the routes; `metrics` gives a text and its media type."""
    router = APIRouter()

    @router.get("/health", **operations.HEALTH)
    async def health() -> dict[str, str]:
        return {"status": "ok", "agent": name}

    @router.get("/ready", **operations.READY)
    async def ready() -> Response:
        now = readiness()
        body = {
            "status": "ready" if now.is_ready else "not ready",
            "agent": name,
            "reason": now.reason,
            "missing": [missing_value(item) for item in now.missing],
            "notes": list(now.notes),
        }
        status = 200 if now.is_ready else 503
        return Response(orjson.dumps(body), status, media_type="application/json")

    @router.get("/metrics", **operations.METRICS)
    async def show_metrics() -> Response:
        text, media_type = metrics()
        return Response(text, media_type=media_type)

    return router


def missing_value(item: Unavailable) -> dict[str, str]:
    """Give what `/ready` says of a missing part."""
    return {"kind": item.kind, "name": item.name, "reason": item.reason}
