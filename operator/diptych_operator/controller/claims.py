"""Which namespaces this operator serves: of several that watch one, the holder of its Lease.

Two operators that apply the same children would undo each other's work for ever. So an operator
claims each namespace with Agents or other owners before it writes there. One that finds a namespace
claimed stands back, and says so: in its log, in an Event, and in an annotation of the Lease, which
the holder reads and logs. A claim expires if its holder is gone. docs/decisions/0133 says why
Leases.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.leader_election import JUST_LOST, Candidate, LeaderElection
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError, ForbiddenError, NamespaceTerminatingError
from diptych_operator.resources.kinds import CLAIM_NAME, LEASE, Object

PERIOD = 20.0
"""Seconds between two renewals of a claim, or looks at another operator's, if there are few."""
MAX_PER_SECOND = 5.0
"""Claims renewed per second; with more namespaces the period gets longer."""
TICK = 2.0

VERSION = "diptych.dev/operator-version"
"""The annotation of a claim with its holder's version."""
STANDING_BACK = "diptych.dev/standing-back"
"""The annotation of a claim that names another operator, which watches the namespace, too."""

_PERIODS = 3  # of a claim's duration: so many renewals may fail
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorName:
    """An operator as others know it: `namespace/lease`, and its version."""

    identity: str
    version: str

    def __str__(self) -> str:
        return f"{self.identity} {self.version}"


@dataclass(slots=True)
class _Claim:
    """The claim of one namespace. `held_until` is in monotonic seconds."""

    election: LeaderElection
    held_until: float = 0.0
    next_look: float = 0.0
    said: str = ""
    """The last sentence about it, so that it is said once."""


class NamespaceClaims:
    """The claims of one operator. `report` makes an Event of a Lease and a sentence."""

    def __init__(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        operator: OperatorName,
        report: Callable[[Object, str], Object],
    ) -> None:
        self._client = client
        self._cache = cache
        self._queue = queue
        self._operator = operator
        self._report = report
        self.clock: Callable[[], float] = time.monotonic
        self._claims: dict[str, _Claim] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def holds(self, namespace: str) -> bool:
        """Whether this operator may write in a namespace now."""
        claim = self._claims.get(namespace)
        return claim is not None and self.clock() < claim.held_until

    async def claim(self, namespace: str) -> bool:
        """Claim a namespace if nobody else has; return whether it is held. Raises `ApiError`."""
        if self.holds(namespace):
            return True
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            claim = self._claims.get(namespace)
            if claim is None or self.clock() >= claim.next_look:
                await self._look_and_queue(namespace)
        return self.holds(namespace)

    async def run(self) -> None:
        """Renew claims, take over what others have left, and give up empty namespaces, forever."""
        while True:
            await asyncio.sleep(TICK)
            await self.renew()

    async def renew(self) -> None:
        """Check every claim that is due."""
        namespaces = {owner.namespace for owner in self._cache.owner_keys()}
        for namespace in [*self._claims]:
            try:
                if namespace not in namespaces:
                    await self._give_up(namespace)
                elif self.clock() >= self._claims[namespace].next_look:
                    await self._renew(namespace)
            except NamespaceTerminatingError as error:
                _log.debug("the claim of namespace %s is gone: %s", namespace, error)
            except ApiError as error:
                _log.warning("the claim of namespace %s cannot be renewed: %s", namespace, error)

    async def _renew(self, namespace: str) -> None:
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            await self._look_and_queue(namespace)

    async def _look_and_queue(self, namespace: str) -> None:
        """Check a claim; if it is newly held, queue the owners that were turned away."""
        was_held = self.holds(namespace)
        await self._look(namespace)
        if self.holds(namespace) and not was_held:
            for owner in [*self._cache.owner_keys()]:
                if owner.namespace == namespace:
                    self._queue.add(owner)

    async def _look(self, namespace: str) -> None:
        """Acquire or renew a claim, or see who holds it."""
        period = max(PERIOD, len(self._claims) / MAX_PER_SECOND)
        note = {VERSION: self._operator.version}
        name, identity = (namespace, CLAIM_NAME), self._operator.identity
        candidate = Candidate(name, identity, _PERIODS * period, note)
        if (claim := self._claims.get(namespace)) is None:
            election = LeaderElection(self._client, candidate, self.clock)
            claim = self._claims[namespace] = _Claim(election)
        claim.election.candidate = candidate  # the period may have changed
        now = self.clock()
        claim.next_look = now + period
        try:
            holder = await claim.election.try_acquire_or_renew()
        except ForbiddenError as error:
            self._say(claim, f"namespace {namespace} is served without a claim: {error}")
            claim.held_until = now + _PERIODS * period
            return
        except ApiError:
            claim.next_look = now
            raise
        if holder == JUST_LOST:  # or the other operator has just noted its name on it
            claim.next_look = now
        elif holder == self._operator.identity:
            claim.held_until = now + (_PERIODS - 1) * period
            self._say_who_stands_back(claim, namespace)
        else:
            claim.held_until = 0.0
            await self._stand_back(claim, namespace, holder)

    async def _stand_back(self, claim: _Claim, namespace: str, holder: str) -> None:
        """Log once that another operator serves a namespace, and tell that operator."""
        if (lease := claim.election.lease) is None:
            return
        annotations = lease["metadata"].get("annotations") or {}
        other = OperatorName(holder, annotations.get(VERSION, "of an unknown version"))
        sentence = (
            f"operator {other} serves namespace {namespace}; operator {self._operator} watches it, "
            "too, and stands back; let only one of them watch it"
        )
        if not self._say(claim, sentence):
            return
        await self._create_event(lease, sentence)
        if annotations.get(STANDING_BACK) != str(self._operator):
            annotations = {**annotations, STANDING_BACK: str(self._operator)}
            noted = {**lease, "metadata": {**lease["metadata"], "annotations": annotations}}
            await self._client.replace(noted)

    def _say_who_stands_back(self, claim: _Claim, namespace: str) -> None:
        annotations = ((claim.election.lease or {}).get("metadata") or {}).get("annotations") or {}
        other = annotations.get(STANDING_BACK, "")
        if other and not other.startswith(f"{self._operator.identity} "):
            self._say(
                claim,
                f"operator {self._operator} serves namespace {namespace}; operator {other} has "
                "watched it, too, and stood back; let only one of them watch it",
            )

    async def _create_event(self, lease: Object, sentence: str) -> None:
        try:
            await self._client.create(self._report(lease, sentence))
        except ApiError as error:  # the log says the same
            _log.debug("an Event could not be created: %s", error)

    def _say(self, claim: _Claim, sentence: str) -> bool:
        """Log a sentence if it is new; return whether it was."""
        if claim.said == sentence:
            return False
        claim.said = sentence
        _log.warning("%s", sentence)
        return True

    async def _give_up(self, namespace: str) -> None:
        """Forget a namespace without owners, and delete its claim if it is held."""
        was_held = self.holds(namespace)
        claim = self._claims.pop(namespace)
        self._locks.pop(namespace, None)
        if was_held:
            uid = ((claim.election.lease or {}).get("metadata") or {}).get("uid")
            await self._client.delete(LEASE, (namespace, CLAIM_NAME), uid)
