"""Routes that are built at their first request, because their imports are heavy.

The imports of A2A's server side cost 18 MB and 0.4 s. An agent that nobody delegates to never
needs them (decision 14).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from starlette.routing import BaseRoute, Match, Router
from starlette.types import Receive, Scope, Send


class LazyRoutes(BaseRoute):
    """Stands in for the routes that `build` gives; only `paths` lead to them."""

    def __init__(self, paths: Collection[str], build: Callable[[], Sequence[BaseRoute]]) -> None:
        self._paths = frozenset(paths)
        self._build = build
        self._router: Router | None = None
        self._build_lock = asyncio.Lock()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_match = scope["type"] == "http" and scope["path"] in self._paths
        return (Match.FULL if is_match else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._build_lock:
            if self._router is None:
                self._router = Router(await asyncio.to_thread(self._build))
        await self._router(scope, receive, send)
