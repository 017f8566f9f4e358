"""`/healthz`, `/readyz` and `/metrics` of the operator itself.

Red means that a restart would help: a watch has told nothing for longer than any living watch does
(the API sends a bookmark every minute, and kopf reconnects after 70 s), or has never come about,
while the API answers lists all that time. While the API is away, or refuses a right, a restart
would not help, and would only make the way back slower.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.store import World
from diptych_operator.watch.staleness import Silence

MAX_SILENCE = 150.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Health:
    """What is told about the operator; `api_answers` asks the API."""

    silence: Silence
    world: World
    metrics: Metrics
    api_answers: Callable[[], Awaitable[bool]]

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def problem(self) -> str | None:
        """Say why the operator should be restarted; None if it need not."""
        silent = self.silence.longest()
        if silent > MAX_SILENCE and await self.api_answers():
            return f"a watch has told nothing for {silent:.0f} s, while the API answers"
        return None

    async def _healthz(self, _: web.Request) -> web.Response:
        problem = await self.problem()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _metrics(self, _: web.Request) -> web.Response:
        text = self.metrics.render(self.world.readiness(), self.silence.longest())
        return web.Response(body=text, content_type="text/plain", charset="utf-8")
