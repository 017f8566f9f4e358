"""Reconciles AgentPools: their pods, and the documents of their Agents."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from diptych_operator.controller.apply import Answers, Applier
from diptych_operator.controller.attempts import Attempts
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.obstacles import Rejected, issuer_unknown
from diptych_operator.controller.pool_handover import PoolHandover
from diptych_operator.controller.status_writer import StatusWriter
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.agent_model import with_model
from diptych_operator.desired.children import Platform
from diptych_operator.desired.pool import (
    Member,
    PoolChildren,
    PoolState,
    access_name,
    pool_children,
)
from diptych_operator.desired.pool_documents import hosted
from diptych_operator.desired.tool_servers import with_tool_servers
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import (
    AGENT,
    AGENT_POOL,
    NETWORK_POLICY,
    NamespacedName,
    ObjectKey,
)
from diptych_operator.resources.owner import ManifestError
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import StatusInputs
from diptych_operator.status.pool import pool_status
from diptych_operator.status.pooled import ready_pods


class PoolReconciler:
    """Makes the cluster match the AgentPools."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        claims: NamespaceClaims,
        issuer: ClusterIssuer,
        platform: Platform,
        handover: PoolHandover,
        now: Callable[[], str],
    ) -> None:
        """`now` returns the time as the API writes it, in whole seconds."""
        self._cache = cache
        self._queue = queue
        self._claims = claims
        self._issuer = issuer
        self._platform = platform
        self._handover = handover
        answers = Answers(cache, queue)
        self._status_writer = StatusWriter(client, cache, answers, now)
        self._applier = Applier(client, cache, answers, platform.pods.locked)
        self._attempts = Attempts()
        self._children: dict[ObjectKey, PoolChildren] = {}
        self._told: dict[ObjectKey, _Told] = {}

    async def reconcile(self, name: NamespacedName) -> float | None:
        """Reconcile a pool; return the seconds after which to reconcile it again, or None.

        Raises `ApiError` if the API failed and a retry may help.
        """
        pool = self._cache.pool(name)
        if pool is None or pool.is_terminating:
            self._forget(name)
            return None
        if not await self._claims.claim(name[0]):
            return None
        if self._issuer.current is None:
            await self._issuer.refresh()
        state = self._observe(pool)
        outcome = await self._attempts.outcome(pool, self._make_children(pool, state))
        inputs = StatusInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            deployment=self._cache.deployment(pool),
            pods=self._cache.pods(pool.key),
            missing_dependencies=(),
            start_problem=self._cache.start_problems.get(pool.key),
        )
        children = self._children.get(pool.key)
        numbers = children.numbers if children else pool.status.get("ports") or {}
        agents = len(children.documents) if children else pool.status.get("agents", 0)
        write = partial(pool_status, pool, inputs, numbers, agents)
        again = await self._status_writer.write(pool, write)
        if children:
            self._queue_changed(pool, children)
        if outcome.failure:
            raise outcome.failure
        return min(filter(None, (again, outcome.retry_after)), default=None)

    def _observe(self, pool: AgentPool) -> PoolState:
        members: list[Member] = []
        leaving: list[Member] = []
        for agent in self._cache.agents_of(pool):
            served = hosted(agent, pool)
            observed = self._cache.observe_and_track(served)
            served = with_model(with_tool_servers(served, observed), observed)
            member = Member(served, replace(observed, issuer=self._issuer.current))
            (members if agent.pool == pool.name else leaving).append(member)
        pods, record = self._cache.pods(pool.key), self._handover.record(pool.key)
        return PoolState(
            members=members,
            leaving=leaving,
            deployment=self._cache.deployment(pool),
            network_policy=self._cache.child(pool, NETWORK_POLICY),
            config_maps=self._cache.config_maps(pool),
            pods=pods,
            issuer=self._issuer.current,
            served=frozenset(agent for report in record.reports.values() for agent in report),
            is_settled=record.is_settled(pods),
            now=int(time.time()),
        )

    async def _make_children(self, pool: AgentPool, state: PoolState) -> None:
        try:
            children = pool_children(pool, state, self._platform)
        except ManifestError as error:
            raise Rejected(Problem(error.reason, f"{error}.")) from error
        has_access = any(one["metadata"]["name"] == access_name(pool) for one in state.config_maps)
        if not (state.issuer or has_access):
            raise issuer_unknown(self._issuer.problem)
        live = await self._applier.find_live(pool, children.to_apply)
        obstacle = await self._applier.apply_all(pool, children.to_apply, live)
        await self._applier.delete_surplus(pool, children.to_apply, children.obsolete)
        self._children[pool.key] = children
        self._handover.record(pool.key).refused = children.refused
        self._handover.hand_over(pool.key, children.documents)
        if obstacle:
            raise obstacle

    def _queue_changed(self, pool: AgentPool, children: PoolChildren) -> None:
        """Queue the Agents whose place has changed, and the callers of those with another port."""
        ready = ready_pods(self._cache.pods(pool.key))
        told = _Told(dict(_places(children)), ready, pool.replicas)
        former = self._told.get(pool.key, _Told({}))
        self._told[pool.key] = told
        if ready != former.ready:
            self._handover.look()
        for name in told.places.keys() | former.places.keys():
            key = ObjectKey(AGENT, pool.namespace, name)
            place, before = told.places.get(name), former.places.get(name)
            if place != before or (told.ready, told.wanted) != (former.ready, former.wanted):
                self._queue.add(key)
            if (place and place[0]) != (before and before[0]):
                for caller in self._cache.referrers(key):
                    self._queue.add(caller)

    def _forget(self, name: NamespacedName) -> None:
        key = ObjectKey(AGENT_POOL, *name)
        for agent in self._cache.referrers(key):
            self._queue.add(agent)
        for referred in self._cache.forget(key):
            self._queue.add(referred)
        self._applier.forget(key)
        self._status_writer.forget(key)
        self._attempts.forget(key)
        self._handover.forget(key)
        self._children.pop(key, None)
        self._told.pop(key, None)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the Agents of a pool know of it: the place of each, and the pods."""

    places: Mapping[str, tuple[int | None, str, str]]
    ready: frozenset[str] = frozenset()
    wanted: int = 0


def _places(children: PoolChildren) -> Iterator[tuple[str, tuple[int | None, str, str]]]:
    """Yield each Agent's number, its document's digest, and why it is refused."""
    for name in {*children.numbers, *children.refused}:
        document = children.documents.get(name)
        digest = document.digest if document else ""
        yield name, (children.numbers.get(name), digest, children.refused.get(name, ""))
