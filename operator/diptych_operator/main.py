"""The operator, put together: settings in, adapters built, kopf started.

This is the composition root. A session waits for the Lease, then watches and reconciles while it
has it. When the Lease is lost or the watches fail for good (a right is missing), the session ends
and another one begins with an empty picture; the process ends only when it is told to, or when a
session leaves something running that might still write.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import kopf
from aiohttp import web

from diptych_operator.controller.config_maps import Configs
from diptych_operator.controller.leader_election import Leadership
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.readiness_poll import Visits
from diptych_operator.controller.reconciler import Reconciler
from diptych_operator.controller.store import World
from diptych_operator.controller.work_queue import Due
from diptych_operator.controller.workers import Work
from diptych_operator.kubernetes.client import Cluster
from diptych_operator.kubernetes.connection import Connection, connect
from diptych_operator.kubernetes.errors import UnavailableError
from diptych_operator.process.health import Health
from diptych_operator.process.logs import set_up_logs
from diptych_operator.process.settings import Settings, SettingsError, settings_from
from diptych_operator.watch.handlers import operator_settings, registry_for
from diptych_operator.watch.resync import Listing, watched_paths
from diptych_operator.watch.staleness import Silence

STOP_SECONDS = 3.0
"""After which what was told to end is told so again."""
PAUSE_SECONDS = 5.0
"""Between what went wrong and the next attempt."""

_STOP_TRIES = 5
_Tasks: TypeAlias = Collection["asyncio.Task[Any]"]
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
    session = Session(settings, connection, Metrics())
    while asyncio.run(_alone(session)):
        time.sleep(1)
    return 0


@dataclass(frozen=True, slots=True)
class Session:
    """One life of the operator, from an empty picture to the loss of Lease or watches.

    `metrics` and `silence` go on from one session to the next.
    """

    settings: Settings
    connection: Connection
    metrics: Metrics
    silence: Silence = field(default_factory=Silence)

    async def run(self) -> bool:
        """Be the operator; say whether there is to be another session."""
        stop = asyncio.Event()
        _on_signals(stop)
        watched = frozenset(self.settings.namespaces) or None
        world = World(watched, self.settings.platform.network.domain)
        async with Cluster(self.connection, self.metrics) as cluster:
            health = Health(self.silence, world, self.metrics, cluster.answers)
            async with _served(health.app(), self.settings.health_port):
                return await self._when_served(cluster, world, stop)

    async def _when_served(self, cluster: Cluster, world: World, stop: asyncio.Event) -> bool:
        candidate = self.settings.candidate
        leadership = Leadership(cluster, candidate) if candidate else None
        if leadership and not await _unless(stop, leadership.win()):
            return False
        self.metrics.leads(leads=True)
        _log.info("active")
        try:
            keeping = leadership.keep() if leadership else asyncio.Event().wait()
            return await self._lead(cluster, world, stop, keeping)
        finally:
            self.silence.rest()
            self.metrics.leads(leads=False)
            if leadership:
                await leadership.release()

    async def _lead(
        self, cluster: Cluster, world: World, stop: asyncio.Event, keeping: Coroutine[Any, Any, Any]
    ) -> bool:
        """Do the work until it is time to stop; say whether there is to be another session."""
        due = Due()
        reconciler = Reconciler(cluster, world, self.settings.platform, _now)
        listing = Listing(cluster, world, due, self.silence)
        stopping, kept = asyncio.create_task(stop.wait()), asyncio.create_task(keeping)
        tasks = [stopping, kept, *Work(due, reconciler, self.metrics).start()]
        asking = (Visits(world, due).run(), Configs(cluster, world, due).run())
        tasks += map(asyncio.create_task, asking)
        # Kopf takes all tasks that are younger than it for its own, and cancels them at its end.
        watching = asyncio.create_task(self._watch(listing, world, due))
        tasks.append(watching)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if errors := _errors(tasks):
                await self._recover(errors, stop)
            # Once kopf runs, it is kopf that listens to signals, and ends.
            return not stop.is_set() and (bool(errors) or not watching.done())
        finally:
            due.close()
            await _end(tasks)

    async def _watch(self, listing: Listing, world: World, due: Due) -> None:
        """Take in the whole picture, then its changes, until a signal ends it."""
        await listing.begin()
        self.silence.expect(watched_paths(world))
        again = asyncio.create_task(listing.run())
        watching = asyncio.create_task(
            kopf.operator(
                registry=registry_for(world, due, self.connection, self.silence),
                settings=operator_settings(),
                # By itself, kopf would ask who the user is, whom a pod may not know.
                identity=cast("Any", self.settings.identity),
                clusterwide=not self.settings.namespaces,
                namespaces=self.settings.namespaces,
            )
        )
        try:
            done, _ = await asyncio.wait([again, watching], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end([again, watching])

    async def _recover(self, errors: Sequence[BaseException], stop: asyncio.Event) -> None:
        """Tell of what has gone wrong, and wait a while, but not if it is time to stop."""
        for error in errors:
            _log.error("something has failed; the operator begins anew", exc_info=error)
        self.metrics.failed()
        _on_signals(stop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS):
                await stop.wait()


async def _alone(session: Session) -> bool:
    """Run a session and leave nothing behind: what goes on might write without the Lease."""
    try:
        return await session.run()
    finally:
        own = asyncio.current_task()
        if left := await _end([task for task in asyncio.all_tasks() if task is not own]):
            _log.critical("%d tasks do not end; the process does", len(left))
            os._exit(1)


async def _end(tasks: _Tasks) -> _Tasks:
    """Cancel tasks until they have ended; give those that have not.

    One cancellation may be lost: in Python 3.11, `asyncio.wait_for`, which kopf uses, swallows one
    that comes together with what it waits for.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(_STOP_TRIES):
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=STOP_SECONDS)
    return left


def _errors(tasks: _Tasks) -> list[BaseException]:
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    return [error for task in ended if (error := task.exception())]


def _on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


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
