"""One term of office of the operator: wait for the Lease, list, watch and reconcile.

A term starts with an empty cache, and ends when a signal arrives, the Lease is lost, or anything
breaks (say, the CRD is deleted); unless it was a signal, `main` begins another one. This is the
composition root: here the parts are made and connected.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import kopf
from aiohttp import web

from diptych_operator.controller.agents import AgentReconciler
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.handshake_poll import HandshakePoll
from diptych_operator.controller.leader_election import LeaderElection
from diptych_operator.controller.mcp_servers import McpServerReconciler
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.model_apis import ModelApiReconciler
from diptych_operator.controller.pool_handover import PoolHandover
from diptych_operator.controller.pool_places import PoolPlaces
from diptych_operator.controller.pool_reconciler import PoolReconciler
from diptych_operator.controller.readiness_poll import ReadinessPoll, StatusTokens
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.controller.workers import Workers
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.kubernetes.errors import UnavailableError
from diptych_operator.process.health import Health
from diptych_operator.process.settings import Settings
from diptych_operator.resources.kinds import (
    AGENT,
    AGENT_POOL,
    MCP_SERVER,
    MODEL_API,
    Object,
)
from diptych_operator.status.events import claim_event
from diptych_operator.watch.handlers import kopf_settings, registry_for, watched_paths
from diptych_operator.watch.resync import Resync
from diptych_operator.watch.staleness import WatchStaleness

STOP_SECONDS = 3.0
"""After which a task that does not end is cancelled again."""

_ATTEMPTS = 5
Tasks: TypeAlias = Collection["asyncio.Task[Any]"]


async def end_tasks(tasks: Tasks) -> Tasks:
    """Cancel tasks until they have ended; return those that have not.

    One cancellation can be lost: in Python 3.11 `asyncio.wait_for`, which kopf uses, swallows one
    that arrives together with its result.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(_ATTEMPTS):
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=STOP_SECONDS)
    return left


def errors_of(tasks: Tasks) -> list[BaseException]:
    """Return the exceptions of tasks that have failed."""
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    return [error for task in ended if (error := task.exception())]


async def finish_unless(stop: asyncio.Event, waiting: Coroutine[Any, Any, None]) -> bool:
    """Await a coroutine; cancel it and return False if `stop` is set before it ends."""
    task, stopping = asyncio.create_task(waiting), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        return False
    task.result()
    return True


def set_on_signals(stop: asyncio.Event) -> None:
    """Set an event on SIGINT and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


PAUSE_SECONDS = 5.0
"""Between a failure and the next term."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Operator:
    """Runs terms. `metrics` outlive a term; all else is new in each."""

    settings: Settings
    connection: Connection
    metrics: Metrics

    async def run_term(self) -> bool:
        """Run one term; return whether another one should follow."""
        stop = asyncio.Event()
        set_on_signals(stop)
        network = self.settings.platform.network
        watched = frozenset(self.settings.namespaces) or None
        cache = ObjectCache(watched, network.domain, network.shared_urls)
        staleness = WatchStaleness()
        async with KubernetesClient(self.connection, self.metrics.count_request) as client:
            health = Health(staleness, cache, self.metrics, client.is_reachable)
            async with _served(health.app(), self.settings.health_port):
                return await self._run_elected(client, cache, staleness, stop)

    async def _run_elected(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        staleness: WatchStaleness,
        stop: asyncio.Event,
    ) -> bool:
        """Wait for the Lease, be active, and release the Lease."""
        candidate = self.settings.candidate
        election = LeaderElection(client, candidate) if candidate else None
        if election and not await finish_unless(stop, election.acquire()):
            return False
        _log.info("this operator is active")
        self.metrics.set_leader(is_leader=True)
        try:
            lease_lost = election.renew() if election else asyncio.Event().wait()
            return await self._run_active(client, cache, staleness, stop, lease_lost)
        finally:
            self.metrics.set_leader(is_leader=False)
            if election:
                await election.release()

    async def _run_active(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        staleness: WatchStaleness,
        stop: asyncio.Event,
        lease_lost: Coroutine[Any, Any, Any],
    ) -> bool:
        """Watch and reconcile until something ends; return whether another term should follow."""
        queue = WorkQueue()
        platform = self.settings.platform
        claims = NamespaceClaims(client, cache, queue, self.settings.name, _claim_event)
        issuer = ClusterIssuer(client, cache, queue)
        given = client, cache, queue, claims, issuer, platform, _now
        servers, apis = McpServerReconciler(*given), ModelApiReconciler(*given)
        tokens = StatusTokens(client, platform.access.operator)
        handover = PoolHandover(cache, queue, tokens)
        places = PoolPlaces(cache, queue, handover, platform)
        agents = AgentReconciler(*given, metrics=self.metrics, pools=places)
        pools = PoolReconciler(*given, handover=handover)
        coroutines: list[Coroutine[Any, Any, Any]] = [
            stop.wait(),
            lease_lost,
            ReadinessPoll(client, cache, queue, tokens).run(),
            HandshakePoll(cache, queue).run(),
            handover.run(),
            issuer.run(),
            claims.run(),
        ]
        tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
        reconcilers = {
            AGENT: agents.reconcile,
            MODEL_API: apis.reconcile,
            MCP_SERVER: servers.reconcile,
            AGENT_POOL: pools.reconcile,
        }
        tasks += Workers(queue, reconcilers, self.metrics).start()
        # The last one: kopf cancels every task of the loop that was created after it started.
        resync = Resync(client, cache, queue, staleness)
        watch = asyncio.create_task(self._watch(resync, cache, queue, staleness))
        tasks.append(watch)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if errors := errors_of(tasks):
                await self._pause(errors, stop)
            # While kopf runs, it handles the signals itself, and ends without an error.
            return not stop.is_set() and (bool(errors) or not watch.done())
        finally:
            queue.shut_down()
            await end_tasks(tasks)

    async def _watch(
        self, resync: Resync, cache: ObjectCache, queue: WorkQueue, staleness: WatchStaleness
    ) -> None:
        """List everything, then run kopf and the resync until a signal ends kopf."""
        await resync.list_first()
        staleness.expect(watched_paths(cache.watched_namespaces))
        gone: asyncio.Queue[str] = asyncio.Queue()
        tasks = [asyncio.create_task(resync.run()), asyncio.create_task(_fail_when_gone(gone))]
        tasks.append(
            asyncio.create_task(
                kopf.operator(
                    registry=registry_for(
                        cache, queue, self.connection, staleness, gone.put_nowait
                    ),
                    settings=kopf_settings(),
                    # Without it kopf asks for the user's name, which a pod's user may not have.
                    identity=cast("Any", self.settings.identity),
                    clusterwide=not self.settings.namespaces,
                    namespaces=self.settings.namespaces,
                )
            )
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks(tasks)

    async def _pause(self, errors: Sequence[BaseException], stop: asyncio.Event) -> None:
        """Log what has failed, and wait before the next term, unless a signal arrives."""
        for error in errors:
            _log.error("the term failed; another one follows", exc_info=error)
        self.metrics.count_failure()
        set_on_signals(stop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS):
                await stop.wait()


async def _fail_when_gone(gone: asyncio.Queue[str]) -> None:
    """Wait until a watched kind is gone, and raise `UnavailableError`."""
    path = await gone.get()
    raise UnavailableError(f"the API has no {path} any more: has somebody deleted the CRD?")


@contextlib.asynccontextmanager
async def _served(app: web.Application, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port, reuse_address=True).start()
        yield
    finally:
        await runner.cleanup()


def _claim_event(lease: Object, sentence: str) -> Object:
    return claim_event(lease, sentence, _now(), secrets.token_hex(8))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
