"""Resync: lists everything, before the watches start and about once a minute after that.

A watch reports changes only, and a watch that had to start anew does not report what was deleted
meanwhile. A list shows it. The first list also makes the cache complete before the first decision,
so that an operator that starts among a thousand good Agents writes nothing.
"""

import asyncio
import contextlib
import logging

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError, ForbiddenError, NotFoundError
from diptych_operator.resources.kinds import ROUTE_KINDS, Kind
from diptych_operator.watch.handlers import label_selector, watched_kinds
from diptych_operator.watch.staleness import WatchStaleness

PERIOD = 60.0
"""Seconds between two lists of everything, if there are few Agents."""
SECONDS_PER_OWNER = 0.15
"""With more than 400 owners the period gets longer: a list takes a millisecond for each."""
RETRY_SECONDS = 3.0

_YIELD_EVERY = 100
_log = logging.getLogger(__name__)


class Resync:
    """Makes the cache complete; queues the owners that a list shows to be affected."""

    def __init__(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        staleness: WatchStaleness | None = None,
    ) -> None:
        self._client = client
        self._cache = cache
        self._queue = queue
        self._staleness = staleness or WatchStaleness()

    async def list_first(self) -> None:
        """List everything for the first time, however long that takes; then start the queue."""
        logged = ""
        while True:
            try:
                await self.list_all()
            except ApiError as error:
                if str(error) != logged:
                    _log.warning("waiting until everything can be listed: %s", error)
                    logged = str(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return self._queue.start()

    async def run(self) -> None:
        """List everything once in `PERIOD`, or more rarely if there are many Agents, forever."""
        while True:
            owners = sum(1 for _ in self._cache.owner_keys())
            await asyncio.sleep(max(PERIOD, owners * SECONDS_PER_OWNER))
            try:
                await self.list_all()
            except ApiError as error:
                _log.warning("cannot list everything: %s", error)

    async def list_all(self) -> None:
        """List everything once. Raises `ApiError`."""
        namespaces = self._cache.watched_namespaces
        try:
            for kind in watched_kinds(namespaces):
                for namespace in namespaces or ("",):
                    await self._list(kind, namespace)
            for kind in ROUTE_KINDS:
                # The cluster may lack the kind. Its Agents are told as the route is made.
                with contextlib.suppress(NotFoundError, ForbiddenError):
                    for namespace in namespaces or ("",):
                        await self._list(kind, namespace)
        except ApiError:
            self._staleness.note_lists(are_complete=False)
            raise
        self._staleness.note_lists(are_complete=True)

    async def _list(self, kind: Kind, namespace: str) -> None:
        listed, version = await self._client.list(kind, namespace, label_selector(kind))
        for number, content in enumerate(listed):
            for owner in self._cache.put(kind, content):
                self._queue.add(owner)
            if number % _YIELD_EVERY == 0:  # a long list must not block the event loop
                await asyncio.sleep(0)
        for owner in self._cache.remove_absent(kind, namespace, listed, version):
            self._queue.add(owner)
