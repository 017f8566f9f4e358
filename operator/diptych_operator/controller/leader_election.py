"""One operator of several is active: the one that holds the Lease.

The holder renews it; whoever finds it expired takes it. A holder that cannot renew it in time
stops before another one may begin. Times are compared on the reader's own clock, as clocks of
nodes differ: a Lease has expired when it has not changed for its duration.

Not here: what being active means (`main`).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from diptych_operator.kubernetes.client import Cluster
from diptych_operator.kubernetes.errors import ClusterError, ConflictError, MissingError
from diptych_operator.resources.kinds import LEASE, Name, Object

DURATION = 15.0
"""Seconds after which a Lease that was not renewed may be taken."""
RENEW_SECONDS = 4.0
GIVE_UP_SECONDS = 10.0
"""Seconds without renewal after which the holder stops; well before the duration is over."""
RELEASE_SECONDS = 3.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who wants which Lease."""

    lease: Name
    identity: str


class Leadership:
    """The Lease, from one candidate's point of view."""

    def __init__(
        self,
        cluster: Cluster,
        candidate: Candidate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._candidate = candidate
        self._clock = clock
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed = 0.0

    async def win(self) -> None:
        """Wait until the Lease is ours."""
        told = ""
        while True:
            try:
                holder = await self.attempt()
            except ClusterError as error:
                holder = f"nobody can tell ({error})"
            if holder == self._candidate.identity:
                return
            if holder != told:
                _log.info("standing by; the active operator is: %s", holder)
                told = holder
            await asyncio.sleep(RENEW_SECONDS / 2)

    async def keep(self) -> None:
        """Renew the Lease until that fails for too long; then return, and no longer be active."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                async with asyncio.timeout(GIVE_UP_SECONDS / 2):
                    holder = await self.attempt()
            except (ClusterError, TimeoutError) as error:
                _log.warning("the Lease could not be renewed: %s", error or "no answer in time")
                if self._clock() - self._renewed > GIVE_UP_SECONDS:
                    return
            else:
                if holder != self._candidate.identity:
                    _log.warning("the Lease has gone to %s", holder)
                    return

    async def attempt(self) -> str:
        """Take or renew the Lease if that is possible now; name its holder. Raises `ClusterError`.

        Two that try at once cannot both succeed: a Lease is replaced only as it was read.
        """
        began = self._clock()
        try:
            lease = await self._cluster.read(LEASE, self._candidate.lease)
        except MissingError:
            lease = None
        if lease is not None and not self._is_free(lease):
            return str(lease["spec"]["holderIdentity"])
        try:
            if lease is None:
                if not await self._cluster.create(self._ours(None)):
                    return "somebody else, since just now"
            else:
                answer = await self._cluster.replace(self._ours(lease))
                self._seen = (answer["metadata"]["resourceVersion"], began)
        except ConflictError:
            return "somebody else, since just now"
        self._renewed = began
        return self._candidate.identity

    async def release(self) -> None:
        """Give the Lease up, so that another operator need not wait for it to expire."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._release()
        except (ClusterError, TimeoutError) as error:
            _log.debug("the Lease was not released: %s", error)

    async def _release(self) -> None:
        lease = await self._cluster.read(LEASE, self._candidate.lease)
        if lease["spec"].get("holderIdentity") == self._candidate.identity:
            del lease["spec"]["holderIdentity"]
            await self._cluster.replace(lease)

    def _is_free(self, lease: Object) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if self._seen[0] != version:
            self._seen = (version, self._clock())
        holder = lease["spec"].get("holderIdentity") or ""
        silent = self._clock() - self._seen[1]
        duration = lease["spec"].get("leaseDurationSeconds", DURATION)
        return holder in {"", self._candidate.identity} or silent > duration

    def _ours(self, lease: Object | None) -> Object:
        namespace, name = self._candidate.lease
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease["spec"] if lease else {}
        is_new = before.get("holderIdentity") != self._candidate.identity
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": lease["metadata"] if lease else {"name": name, "namespace": namespace},
            "spec": {
                "holderIdentity": self._candidate.identity,
                "leaseDurationSeconds": int(DURATION),
                "acquireTime": now if is_new else before.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": before.get("leaseTransitions", 0) + bool(lease and is_new),
            },
        }
