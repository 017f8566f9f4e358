"""Leader election: of several candidates, the holder of the Lease is active.

It works as client-go's. The holder renews the Lease; a candidate that finds it expired acquires
it. A holder that cannot renew it in time stops before another operator may start. A Lease has
expired when it has not changed for its duration on the reader's own monotonic clock, as the clocks
of nodes differ.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError, ConflictError, NotFoundError
from diptych_operator.resources.kinds import LEASE, NamespacedName, Object

LEASE_DURATION = 15.0
"""Seconds after which a Lease that was not renewed may be acquired."""
RENEW_PERIOD = 4.0
RENEW_DEADLINE = 10.0
"""Seconds without renewal after which the holder stops; well below `LEASE_DURATION`."""
RELEASE_TIMEOUT = 3.0

JUST_LOST = "somebody else, since just now"
"""The holder of a Lease that changed while it was being replaced."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate: its Lease, the lease's duration in seconds, and a `note` for its annotations."""

    lease: NamespacedName
    identity: str
    duration: float = LEASE_DURATION
    note: Mapping[str, str] = field(default_factory=dict)


class LeaderElection:
    """One candidate's part in the election. `clock` gives monotonic seconds.

    A change of `candidate` takes effect with the next request.
    """

    def __init__(
        self,
        client: KubernetesClient,
        candidate: Candidate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self.candidate = candidate
        self._clock = clock
        self.lease: Object | None = None
        """The Lease as it was last seen."""
        self._observed: tuple[Object, float] = ({}, 0.0)
        """What the Lease said, and when this candidate first saw it."""
        self._renewed_at = 0.0

    async def acquire(self) -> None:
        """Wait until this candidate holds the Lease."""
        logged = ""
        while True:
            try:
                holder = await self.try_acquire_or_renew()
            except ApiError as error:
                holder = f"unknown ({error})"
            if holder == self.candidate.identity:
                return
            if holder != logged:
                _log.info("standing by; the holder of the Lease is %s", holder)
                logged = holder
            await asyncio.sleep(RENEW_PERIOD / 2)

    async def renew(self) -> None:
        """Renew the Lease until it is lost; the operator must stop when this returns.

        That is `RENEW_DEADLINE` after the last renewal at the latest, however the API behaves.
        """
        while (left := self._seconds_left()) > 0:
            await asyncio.sleep(min(RENEW_PERIOD, left))
            try:
                async with asyncio.timeout(min(RENEW_DEADLINE / 2, max(self._seconds_left(), 0))):
                    holder = await self.try_acquire_or_renew()
            except (ApiError, TimeoutError) as error:
                _log.warning("the Lease could not be renewed: %s", _cause(error))
            else:
                if holder != self.candidate.identity:
                    _log.warning("the Lease was lost to %s", holder)
                    return

    def _seconds_left(self) -> float:
        """Return how long this candidate may go on without another renewal."""
        return self._renewed_at + RENEW_DEADLINE - self._clock()

    async def try_acquire_or_renew(self) -> str:
        """Acquire or renew the Lease if possible; return its holder.

        Of two candidates that try at once one fails, because a Lease is replaced only at the
        version that was read. Raises `ApiError`.
        """
        started = self._clock()
        try:
            lease = await self._client.read(LEASE, self.candidate.lease)
        except NotFoundError:
            lease = None
        self.lease = lease
        if lease is not None and not self._is_available(lease):
            return str(lease["spec"]["holderIdentity"])
        try:
            if lease is None:
                if not await self._client.create(self._held(None)):
                    return JUST_LOST
            else:
                answer = await self._client.replace(self._held(lease))
                self._observed = (answer["spec"], started)
                self.lease = answer
        except ConflictError:
            return JUST_LOST
        self._renewed_at = started
        return self.candidate.identity

    async def release(self) -> None:
        """Give the Lease up, so that another operator need not wait until it expires."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT):
                await self._release()
        except (ApiError, TimeoutError) as error:
            _log.debug("the Lease was not released: %s", _cause(error))

    async def _release(self) -> None:
        lease = await self._client.read(LEASE, self.candidate.lease)
        if lease["spec"].get("holderIdentity") == self.candidate.identity:
            del lease["spec"]["holderIdentity"]
            await self._client.replace(lease)

    def _is_available(self, lease: Object) -> bool:
        """Whether a Lease is free, expired or this candidate's own."""
        if self._observed[0] != lease["spec"]:  # an annotation of somebody else is no renewal
            self._observed = (lease["spec"], self._clock())
        holder = lease["spec"].get("holderIdentity") or ""
        unchanged_for = self._clock() - self._observed[1]
        duration = lease["spec"].get("leaseDurationSeconds", LEASE_DURATION)
        return holder in {"", self.candidate.identity} or unchanged_for > duration

    def _held(self, lease: Object | None) -> Object:
        """Return the Lease as it is when this candidate holds it; `lease` is how it is now."""
        namespace, name = self.candidate.lease
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = lease["spec"] if lease else {}
        is_new_holder = spec.get("holderIdentity") != self.candidate.identity
        transitions = spec.get("leaseTransitions", 0) + bool(lease and is_new_holder)
        metadata: Object = lease["metadata"] if lease else {"name": name, "namespace": namespace}
        annotations = {**metadata.get("annotations", {}), **self.candidate.note}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {**metadata, "annotations": annotations} if annotations else metadata,
            "spec": {
                "holderIdentity": self.candidate.identity,
                "leaseDurationSeconds": int(self.candidate.duration),
                "acquireTime": now if is_new_holder else spec.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }


def _cause(error: Exception) -> str:
    return str(error) or "no answer in time"  # a TimeoutError has no words
