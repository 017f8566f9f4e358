"""The operator, put together: settings in, adapters built, kopf started.

This is the composition root. A session waits for the Lease, then watches and reconciles while it
has it. When the Lease is lost or the watches fail for good (a right is missing), the session ends
and another one begins with an empty picture; the process ends only when it is told to.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import kopf
from aiohttp import web

from diptych_operator.cluster import Cluster
from diptych_operator.connection import Connection, Silence, connect
from diptych_operator.due import Due
from diptych_operator.errors import UnavailableError
from diptych_operator.handlers import operator_settings, registry_for
from diptych_operator.health import Health
from diptych_operator.leader import Leadership
from diptych_operator.listing import Listing
from diptych_operator.logs import set_up_logs
from diptych_operator.metrics import Metrics
from diptych_operator.reconcile import Reconciler
from diptych_operator.settings import Settings, SettingsError, settings_from
from diptych_operator.visits import Visits
from diptych_operator.work import Work
from diptych_operator.world import World

STOP_SECONDS = 10.0
PAUSE_SECONDS = 5.0
"""Between what went wrong and the next attempt."""

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until a signal ends it; give the exit code."""
    try:
        settings = settings_from(sys.argv[1:] if arguments is None else arguments, os.environ)
        connection = connect()
    except (SettingsError, UnavailableError) as error:
        print(f"diptych-operator: {error}", file=sys.stderr)  # noqa: T201
        return 2
    set_up_logs(settings.log_level, settings.log_format)
    metrics = Metrics()
    while asyncio.run(Session(settings, connection, metrics).run()):
        time.sleep(1)
    return 0


@dataclass(frozen=True, slots=True)
class Session:
    """One life of the operator, from an empty picture to the loss of Lease or watches."""

    settings: Settings
    connection: Connection
    metrics: Metrics

    async def run(self) -> bool:
        """Be the operator; say whether there is to be another session."""
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        silence = Silence()
        watched = frozenset(self.settings.namespaces) or None
        world = World(watched, self.settings.platform.network.domain)
        async with Cluster(self.connection, self.metrics) as cluster:
            health = Health(silence, world, self.metrics, cluster.answers)
            async with _served(health.app(), self.settings.health_port):
                return await self._when_served(cluster, world, silence, stop)

    async def _when_served(
        self, cluster: Cluster, world: World, silence: Silence, stop: asyncio.Event
    ) -> bool:
        candidate = self.settings.candidate
        leadership = Leadership(cluster, candidate) if candidate else None
        if leadership and not await _unless(stop, leadership.win()):
            return False
        self.metrics.leads(leads=True)
        _log.info("active")
        try:
            keeping = leadership.keep() if leadership else asyncio.Event().wait()
            return await self._lead(cluster, world, silence, [stop.wait(), keeping])
        finally:
            self.metrics.leads(leads=False)
            if leadership:
                await leadership.release()

    async def _lead(
        self,
        cluster: Cluster,
        world: World,
        silence: Silence,
        ends: Sequence[Coroutine[Any, Any, Any]],
    ) -> bool:
        """Do the work until one of `ends` is over; say whether there is to be another session."""
        due = Due()
        visits = Visits(cluster, world, due)
        reconciler = Reconciler(cluster, world, self.settings.platform, _now)
        stopping, keeping = (asyncio.create_task(end) for end in ends)
        tasks = [stopping, keeping, asyncio.create_task(visits.run())]
        tasks += Work(due, reconciler, self.metrics).start()
        # Kopf takes all tasks that are younger than it for its own, and cancels them at its end.
        watching = asyncio.create_task(
            self._watch(
                Listing(cluster, world, due),
                registry_for(world, due, visits, self.connection, silence),
            )
        )
        tasks.append(watching)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            errors = [error for task in tasks if task.done() and (error := task.exception())]
            for error in errors:
                _log.error("something has failed; the operator begins anew", exc_info=error)
            if errors:
                await asyncio.sleep(PAUSE_SECONDS)
            # Once kopf runs, it is kopf that listens to signals, and ends.
            return bool(errors) or not (stopping.done() or watching.done())
        finally:
            due.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=STOP_SECONDS)

    async def _watch(self, listing: Listing, registry: kopf.OperatorRegistry) -> None:
        """Take in the whole picture, then its changes, until a signal ends it."""
        await listing.begin()
        again = asyncio.create_task(listing.run())
        try:
            await kopf.operator(
                registry=registry,
                settings=operator_settings(),
                clusterwide=not self.settings.namespaces,
                namespaces=self.settings.namespaces,
            )
        finally:
            again.cancel()


async def _unless(stop: asyncio.Event, waiting: Coroutine[Any, Any, None]) -> bool:
    """Wait for something; give False if it was time to stop before."""
    task, stopping = asyncio.create_task(waiting), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        return False
    task.result()
    return True


@contextlib.asynccontextmanager
async def _served(app: web.Application, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port, reuse_address=True).start()
        yield
    finally:
        await runner.cleanup()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
