"""The whole picture, by listing: before the watches begin, and every minute after that.

A watch tells of changes alone, and one that has to begin anew tells nothing of what was deleted
meanwhile. A list does. It is also what makes the first decision one on the whole picture: an
operator that starts among a thousand good agents writes nothing.

Not here: the changes in between (`handlers`).
"""

import asyncio
import logging
from collections.abc import Iterator

from diptych_operator.controller.store import World
from diptych_operator.controller.work_queue import Due
from diptych_operator.kubernetes.client import Cluster
from diptych_operator.kubernetes.errors import ClusterError
from diptych_operator.resources.kinds import (
    AGENT,
    MANAGED_BY,
    MANAGER,
    NAMESPACE,
    OWNED,
    POD,
    WATCHED_BY_LABEL,
    Kind,
)
from diptych_operator.watch.staleness import Silence

PERIOD = 60.0
RETRY_SECONDS = 3.0

_BREATH = 100
_log = logging.getLogger(__name__)


def watched_kinds(world: World) -> tuple[Kind, ...]:
    """List the kinds to be watched. A namespaced operator has no right to see Namespaces."""
    kinds = (AGENT, *OWNED, POD)
    return kinds if world.watched is not None else (*kinds, NAMESPACE)


def watched_paths(world: World) -> Iterator[str]:
    """List the API's paths that are watched."""
    for kind in watched_kinds(world):
        for namespace in world.watched or ("",):
            yield kind.path(namespace)


def selector(kind: Kind) -> str:
    """Give the label selector for a kind: of most, only the operator's own objects are watched."""
    return f"{MANAGED_BY}={MANAGER}" if kind in WATCHED_BY_LABEL else ""


class Listing:
    """Keeps the world whole."""

    def __init__(
        self, cluster: Cluster, world: World, due: Due, silence: Silence | None = None
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._due = due
        self._silence = silence or Silence()

    async def begin(self) -> None:
        """List everything for the first time, however long that takes; then let work begin."""
        told = ""
        while True:
            try:
                await self.refresh()
            except ClusterError as error:
                if str(error) != told:
                    _log.warning("waiting until everything can be listed: %s", error)
                    told = str(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return self._due.open()

    async def run(self) -> None:
        """List everything again and again, for ever."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.refresh()
            except ClusterError as error:
                _log.warning("cannot list everything: %s", error)

    async def refresh(self) -> None:
        """List everything once. Raises `ClusterError`."""
        try:
            for kind in watched_kinds(self._world):
                for namespace in self._world.watched or ("",):
                    await self._refresh(kind, namespace)
        except ClusterError:
            self._silence.listed(is_whole=False)
            raise
        self._silence.listed(is_whole=True)

    async def _refresh(self, kind: Kind, namespace: str) -> None:
        found, version = await self._cluster.list(kind, namespace, selector(kind))
        for number, content in enumerate(found):
            for name in self._world.put(kind, content):
                self._due.add(name)
            if number % _BREATH == 0:  # a long list must not hold up all else
                await asyncio.sleep(0)
        for content in self._world.missing(kind, namespace, found, version):
            for name in self._world.drop(kind, content):
                self._due.add(name)
