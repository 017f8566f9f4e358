"""Routes that are made when they are first asked for, because what they import is heavy.

A2A's server side is 18 MB and 0.4 s of imports, which an agent that nobody delegates to never
needs (docs/performance.md).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from starlette.routing import BaseRoute, Match, Router
from starlette.types import Receive, Scope, Send


class LateRoutes(BaseRoute):
    """Stands for the routes that `make` gives; only `paths` lead to them."""

    def __init__(self, paths: Collection[str], make: Callable[[], Sequence[BaseRoute]]) -> None:
        self._paths = frozenset(paths)
        self._make = make
        self._router: Router | None = None
        self._making = asyncio.Lock()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_ours = scope["type"] == "http" and scope["path"] in self._paths
        return (Match.FULL if is_ours else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._making:
            if self._router is None:
                self._router = Router(await asyncio.to_thread(self._make))
        await self._router(scope, receive, send)
