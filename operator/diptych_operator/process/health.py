"""The operator's own `/healthz`, `/readyz` and `/metrics`.

`/healthz` fails only if a restart would help: a watch is silent for longer than a live watch can be
(the API sends a bookmark every minute, and kopf reconnects after 70 s), or has never started, while
the API answers lists all that time. If the API is down or refuses a right, a restart would not help
and would only delay the recovery.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.metrics import Metrics
from diptych_operator.watch.staleness import WatchStaleness

MAX_STALENESS = 150.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Health:
    """The HTTP endpoints; `is_api_reachable` asks the API."""

    staleness: WatchStaleness
    cache: ObjectCache
    metrics: Metrics
    is_api_reachable: Callable[[], Awaitable[bool]]

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def problem(self) -> str | None:
        """Return why the operator should be restarted; None if it should not."""
        seconds = self.staleness.seconds()
        if seconds > MAX_STALENESS and await self.is_api_reachable():
            return f"a watch has been silent for {seconds:.0f} s, while the API answers"
        return None

    async def _healthz(self, _: web.Request) -> web.Response:
        problem = await self.problem()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _metrics(self, _: web.Request) -> web.Response:
        text = self.metrics.render(
            self.cache.count_by_readiness(),
            self.cache.count_bad_conditions(),
            self.staleness.seconds(),
        )
        return web.Response(body=text, content_type="text/plain", charset="utf-8")
