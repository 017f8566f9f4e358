"""The door of a pool: one address for all of its agents, its health, and its management.

`/pool/agents` is for the operator: it lists the agents, and adds, changes and removes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from diptych.access.grants import Right
from diptych.core.errors import RequestError
from diptych.http.access_guard import AccessGuard, AccessPolicy
from diptych.http.bodies import json_response
from diptych.http.errors import error_body, error_response
from diptych.http.guards import BodyGuard, RequestIds
from diptych.net.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from diptych.serve.pool import Pool

PoolState: TypeAlias = Literal["starting", "ready", "draining", "failed"]
_OWN_PATHS = ("/health", "/ready", "/pool/")


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """An agent of a pool. `digest` is that of its newest document.

    `failed`: this document cannot be used for a `reason`; an older form, if any, goes on. `missing`
    and `scheduled` are those of its own `/ready`.
    """

    name: str
    digest: str
    port: int
    state: PoolState
    reason: str = ""
    missing: Sequence[Mapping[str, str]] = ()
    scheduled: Sequence[Mapping[str, str]] = ()


class PoolDoor:
    """ASGI application: the pool's own paths; `team` handles all others."""

    def __init__(
        self,
        pool: "Pool",
        team: ASGIApp,
        policy: AccessPolicy,
        memory_budget: MemoryBudget,
    ) -> None:
        self._pool = pool
        self._team = team
        agent = Route("/agents/{name}", self._change, methods=["PUT", "DELETE"])
        guards = [
            Middleware(AccessGuard, policy=policy, needs=Right.STATUS),
            Middleware(BodyGuard, memory_budget=memory_budget),
        ]
        own = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Mount("/pool", routes=[Route("/agents", self._list), agent], middleware=guards),
            ]
        )
        self._own = RequestIds(own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_own = scope["path"].startswith(_OWN_PATHS)
        await (self._own if is_own else self._team)(scope, receive, send)

    async def _health(self, _: Request) -> Response:
        return json_response({"status": "ok", "pool": self._pool.name})

    async def _ready(self, _: Request) -> Response:
        is_ready = self._pool.is_ready
        status = "ready" if is_ready else "not ready"
        return json_response({"status": status, "pool": self._pool.name}, 200 if is_ready else 503)

    async def _list(self, _: Request) -> Response:
        return json_response(self._pool.entries())

    async def _change(self, request: Request) -> Response:
        name, path = request.path_params["name"], request.scope["path"]
        if request.method == "DELETE":
            entry = self._pool.remove(name)
            if entry is None:
                body = error_body(f"there is no agent {name[:64]!r}", "invalid_request_error")
                return error_response(path, 404, body)
            return json_response(entry, 202)
        try:
            return json_response(self._pool.put(name, await request.body()), 202)
        except RequestError as error:
            return error_response(path, 422, error_body(error.message, "invalid_request_error"))
