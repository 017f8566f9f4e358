"""Reconciles AgentPools: their pods, and the documents of their Agents."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from diptych_operator.controller.attempts import Outcome
from diptych_operator.controller.obstacles import as_rejection, issuer_unknown
from diptych_operator.controller.owner_reconciler import OwnerReconciler
from diptych_operator.controller.pool_handover import PoolHandover
from diptych_operator.desired.agent_model import with_model
from diptych_operator.desired.pool import (
    Member,
    PoolChildren,
    PoolState,
    access_name,
    pool_children,
)
from diptych_operator.desired.pool_documents import hosted
from diptych_operator.desired.tool_servers import with_tool_servers
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import AGENT, NETWORK_POLICY, ObjectKey
from diptych_operator.status.conditions import StatusInputs
from diptych_operator.status.pool import pool_status
from diptych_operator.status.pooled import ready_pods


class PoolReconciler(OwnerReconciler[AgentPool, PoolState]):
    """Makes the cluster match the AgentPools."""

    owner_type = AgentPool

    def __init__(self, *given: Any, handover: PoolHandover) -> None:  # noqa: ANN401 - as the others
        super().__init__(*given)
        self._handover = handover
        self._children: dict[ObjectKey, PoolChildren] = {}
        self._notified: dict[ObjectKey, _Notified] = {}

    def _status(
        self,
        owner: AgentPool,
        state: PoolState,  # noqa: ARG002 - the children say more
        outcome: Outcome,
    ) -> Callable[[str], Mapping[str, Any]]:
        inputs = StatusInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            deployment=self._cache.deployment(owner),
            pods=self._cache.pods(owner.key),
            missing_dependencies=(),
            start_problem=self._cache.start_problems.get(owner.key),
        )
        children = self._children.get(owner.key)
        numbers = children.numbers if children else owner.status.get("ports") or {}
        agents = len(children.documents) if children else owner.status.get("agents", 0)
        return partial(pool_status, owner, inputs, numbers, agents)

    async def _observe(self, owner: AgentPool) -> PoolState:
        members: list[Member] = []
        leaving: list[Member] = []
        for agent in self._cache.agents_of(owner):
            served = hosted(agent, owner)
            observed = self._cache.observe_and_track(served)
            served = with_model(with_tool_servers(served, observed), observed)
            member = Member(served, replace(observed, issuer=self._issuer.current))
            (members if agent.pool == owner.name else leaving).append(member)
        pods, record = self._cache.pods(owner.key), self._handover.record(owner.key)
        return PoolState(
            members=members,
            leaving=leaving,
            deployment=self._cache.deployment(owner),
            network_policy=self._cache.child(owner, NETWORK_POLICY),
            config_maps=self._cache.config_maps(owner),
            pods=pods,
            issuer=self._issuer.current,
            served=frozenset(agent for report in record.reports.values() for agent in report),
            is_settled=record.is_settled(pods),
            now=int(time.time()),
        )

    async def _make_children(self, owner: AgentPool, state: PoolState) -> None:
        with as_rejection():
            children = pool_children(owner, state, self._platform)
        access = access_name(owner)
        has_access = any(one["metadata"]["name"] == access for one in state.config_maps)
        if not (state.issuer or has_access):
            raise issuer_unknown(self._issuer.problem)
        obstacle = await self._apply(owner, children.to_apply, children.obsolete)
        self._children[owner.key] = children
        self._handover.record(owner.key).refused = children.refused
        self._handover.hand_over(owner.key, children.documents)
        if obstacle:
            raise obstacle

    def _notify(self, owner: AgentPool) -> None:
        """Queue the Agents whose place has changed, and the callers of those with another port."""
        if (children := self._children.get(owner.key)) is None:
            return
        ready = ready_pods(self._cache.pods(owner.key))
        now = _Notified(dict(_places(children)), ready, owner.replicas)
        former = self._notified.get(owner.key, _Notified({}))
        self._notified[owner.key] = now
        if ready != former.ready:
            self._handover.look()
        for name in now.places.keys() | former.places.keys():
            key = ObjectKey(AGENT, owner.namespace, name)
            place, before = now.places.get(name), former.places.get(name)
            if place != before or (now.ready, now.wanted) != (former.ready, former.wanted):
                self._queue.add(key)
            if (place and place[0]) != (before and before[0]):
                for caller in self._cache.referrers(key):
                    self._queue.add(caller)

    def _forget(self, key: ObjectKey) -> None:
        for agent in self._cache.referrers(key):
            self._queue.add(agent)
        super()._forget(key)
        self._handover.forget(key)
        self._children.pop(key, None)
        self._notified.pop(key, None)


@dataclass(frozen=True, slots=True)
class _Notified:
    """The places of a pool's Agents, and the state of its pods."""

    places: Mapping[str, tuple[int | None, str, str]]
    ready: frozenset[str] = frozenset()
    wanted: int = 0


def _places(children: PoolChildren) -> Iterator[tuple[str, tuple[int | None, str, str]]]:
    """Yield each Agent's number, its document's digest, and why it is refused."""
    for name in {*children.numbers, *children.refused}:
        document = children.documents.get(name)
        digest = document.digest if document else ""
        yield name, (children.numbers.get(name), digest, children.refused.get(name, ""))
