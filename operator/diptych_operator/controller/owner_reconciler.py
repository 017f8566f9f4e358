"""The reconcile of every kind: observe, decide, apply, delete surplus children, write the status.

Level-based: whatever has changed, the whole owner is reconciled, and a child that has not drifted
costs no request. So the outcome depends on the current state alone, not on which event came, and
a crash between two writes does no harm.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from diptych_operator.controller.apply import Answers, Applier
from diptych_operator.controller.attempts import Attempts, Outcome
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.obstacles import Blocked
from diptych_operator.controller.status_writer import StatusWriter
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.children import Platform
from diptych_operator.desired.network_policy import Rule, pods_of
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Kind, NamespacedName, Object, ObjectKey
from diptych_operator.resources.owner import Owner

_Owner = TypeVar("_Owner", bound=Owner)
_State = TypeVar("_State")


class OwnerReconciler(ABC, Generic[_Owner, _State]):
    """Makes the cluster match the owners of one type."""

    owner_type: type[_Owner]

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        claims: NamespaceClaims,
        issuer: ClusterIssuer,
        platform: Platform,
        now: Callable[[], str],
    ) -> None:
        """`now` returns the time as the API writes it, in whole seconds."""
        self._client = client
        self._cache = cache
        self._queue = queue
        self._claims = claims
        self._issuer = issuer
        self._platform = platform
        self._answers = Answers(cache, queue)
        self._status_writer = StatusWriter(client, cache, self._answers, now)
        self._applier = Applier(client, cache, self._answers, platform.pods.locked)
        self._attempts = Attempts()

    async def reconcile(self, name: NamespacedName) -> float | None:
        """Reconcile an owner; return the seconds after which to reconcile it again, or None.

        Raises `ApiError` if the API failed and a retry may help.
        """
        owner = self._cache.read(self.owner_type, name)
        if owner is None or owner.is_terminating:  # the garbage collector deletes its children
            self._forget(ObjectKey(self.owner_type.kind, *name))
            return None
        if not await self._claims.claim(name[0]):
            return None  # another operator serves it; if that one goes, `claims` queues the owner
        if self._issuer.current is None and owner.verifies_tokens:
            await self._issuer.refresh()
        state = await self._observe(owner)
        outcome = await self._attempts.outcome(owner, self._make_children(owner, state))
        status = self._status(owner, state, outcome)
        again = await self._status_writer.write(owner, status)
        self._notify(owner)
        if outcome.failure:
            raise outcome.failure
        due = await self._retry(owner, state)
        return min(filter(None, (again, due, outcome.retry_after)), default=None)

    @abstractmethod
    async def _observe(self, owner: _Owner) -> _State:
        """Return the state that its children depend on. Raises `ApiError`."""

    @abstractmethod
    async def _make_children(self, owner: _Owner, state: _State) -> None:
        """Write its children. Raises as `Attempts.outcome` expects."""

    @abstractmethod
    def _status(
        self, owner: _Owner, state: _State, outcome: Outcome
    ) -> Callable[[str], Mapping[str, Any]]:
        """Return a function from the time now to its status."""

    def _notify(self, owner: _Owner) -> None:
        """Queue others that depend on its status."""

    async def _retry(self, owner: _Owner, state: _State) -> float | None:  # noqa: ARG002
        """Retry what no watch reports; return the seconds until the next time."""
        return None

    def _peers_of(self, agents: Iterable[Agent]) -> list[Rule]:
        """Return the NetworkPolicy peers for the pods of Agents; those of a pool share pods."""
        peers: list[Rule] = []
        for agent in agents:
            for labels in self._cache.pod_selectors(agent):
                if (peer := pods_of(agent.namespace, labels)) not in peers:
                    peers.append(peer)
        return peers

    async def _apply(
        self,
        owner: _Owner,
        children: Iterable[Object],
        surplus: Iterable[tuple[Kind, Object, str]],
    ) -> Blocked | None:
        """Apply children and delete others; return the obstacle of one that cannot be applied."""
        children = tuple(children)
        live = await self._applier.find_live(owner, children)
        obstacle = await self._applier.apply_all(owner, children, live)
        await self._applier.delete_surplus(owner, children, surplus)
        return obstacle

    def _forget(self, key: ObjectKey) -> None:
        for referred in self._cache.forget(key):
            self._queue.add(referred)
        self._applier.forget(key)
        self._status_writer.forget(key)
        self._attempts.forget(key)
