"""The process of a ModelAPI's proxy, from its sockets to a clean end at a signal."""

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Self

import aiohttp
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from diptych.http.access_guard import AccessGuard
from diptych.http.guards import BodyGuard
from diptych.manifest.secret_sources import CurrentFile
from diptych.manifest.settings import AccessConfig, ProcessSettings
from diptych.model_proxy.budget import DayBudget
from diptych.model_proxy.config import ProxyConfig
from diptych.model_proxy.metrics import ProxyMetrics
from diptych.model_proxy.relay import ModelRelay
from diptych.models.connection import open_http_session
from diptych.net.memory_budget import MemoryBudget
from diptych.serve.access import AgentAccess
from diptych.serve.adapters import SystemClock
from diptych.serve.app import create_metrics_app
from diptych.serve.http_server import run_http_server
from diptych.serve.memory_limit import memory_limit, room_for_requests
from diptych.serve.process import Sockets, make_undumpable, set_at_signals, wait_idle

MAX_BODY = 32 * 2**20  # bytes of a request: long conversations with images
_logger = logging.getLogger(__name__)


class ModelProxy:
    """The parts of a proxy, put together; use inside `async with`."""

    def __init__(
        self,
        config: CurrentFile[ProxyConfig],
        http: aiohttp.ClientSession,
        memory_budget: MemoryBudget,
    ) -> None:
        self._metrics = ProxyMetrics()
        self._budget = DayBudget(config.current, SystemClock())
        self.relay = ModelRelay(config, http, self._budget, self._metrics)
        self._access = AgentAccess(AccessConfig(platform=lambda: config.current().access), http)
        policy = replace(
            self._access.policy(config.current().name, self._metrics.count_refused),
            advice="an Agent has token and right if its model.apiRef names this ModelAPI, "
            "and the ModelAPI's allowedNamespaces agrees",
        )
        self.app: ASGIApp = self.relay.app(
            Middleware(AccessGuard, policy=policy),
            Middleware(BodyGuard, memory_budget=memory_budget, max_body=MAX_BODY, is_relay=True),
        )
        self.metrics_app: ASGIApp = create_metrics_app(self._render_metrics, on_loopback=False)
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        config = self.relay.upstream().config
        await self._access.start()
        if config.per_day:
            await self._budget.start()
        self._watching = asyncio.create_task(self.relay.watch.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching:
            self._watching.cancel()
        await self._budget.aclose()
        await self._access.aclose()

    def _render_metrics(self) -> tuple[bytes, str]:
        return self._metrics.render(self.relay.live, self._budget.of_day)


async def serve_model_proxy(
    config: CurrentFile[ProxyConfig],
    sockets: Sockets,
    metrics: Sockets | None,
    settings: ProcessSettings,
) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends open exchanges at once."""
    make_undumpable()
    stop = set_at_signals()
    memory_budget = MemoryBudget(room_for_requests(settings.memory_limit or memory_limit()))
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(open_http_session())
        proxy = await stack.enter_async_context(ModelProxy(config, http, memory_budget))
        apps = [(proxy.app, sock) for sock in sockets]
        apps += [(proxy.metrics_app, sock) for sock in metrics or ()]
        server = await stack.enter_async_context(run_http_server(apps, memory_budget))
        _logger.info("the proxy of ModelAPI %s is at %s", config.current().name, *sockets.addresses)
        await stop.wait()
        stop.clear()
        proxy.relay.is_closing = True
        await server.wait_for_first_requests()
        await wait_idle(lambda: proxy.relay.live, settings.shutdown_grace, stop)
