"""Reconciles Agents."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from diptych_operator.controller.attempts import Outcome
from diptych_operator.controller.foreign_servers import ForeignServers
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.obstacles import (
    Blocked,
    as_refusal,
    as_rejection,
    issuer_unknown,
    moves_to_pool,
)
from diptych_operator.controller.owner_reconciler import OwnerReconciler
from diptych_operator.controller.pool_places import PoolPlaces
from diptych_operator.controller.purge_jobs import PurgeJobs
from diptych_operator.controller.rollout_throttle import RolloutThrottle
from diptych_operator.desired.access import (
    ACCESS_KEY,
    access_config_map_name,
    access_content,
    access_text,
)
from diptych_operator.desired.agent_model import UnresolvedModel, with_model
from diptych_operator.desired.children import (
    Children,
    closed_network_policy,
    desired_children,
)
from diptych_operator.desired.pool_documents import hosted
from diptych_operator.desired.references import ObservedState
from diptych_operator.desired.rollout import mounted_config_maps
from diptych_operator.desired.tool_servers import with_tool_servers
from diptych_operator.resources.agent import Agent, ExposeError
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    MCP_SERVER,
    MODEL_API,
    RETRIED,
    NamespacedName,
    Object,
    ObjectKey,
    kind_of,
)
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import StatusInputs, agent_status, former_degraded
from diptych_operator.status.pods import NUDGE_SECONDS, refusal
from diptych_operator.status.unresolved import pool_problems, unresolved_references


@dataclass(frozen=True, slots=True)
class _State:
    """An Agent with its references resolved, and the part of the cluster that concerns it.

    `digest` is that of its newest document in its pool, `foreign_due` the seconds until tool
    servers of other groups are read again.
    """

    agent: Agent
    observed: ObservedState
    digest: str
    foreign_due: float | None


class AgentReconciler(OwnerReconciler[Agent, _State]):
    """Makes the cluster match the Agents."""

    owner_type = Agent

    def __init__(self, *given: Any, metrics: Metrics, pools: PoolPlaces) -> None:  # noqa: ANN401 - as the others
        super().__init__(*given)
        self._pools = pools
        rollout = self._platform.pods.rollout
        self._throttle = RolloutThrottle(self._cache, self._queue, rollout, metrics)
        self._foreign_servers = ForeignServers(self._client, self._cache)
        self._purge_jobs = PurgeJobs(self._client, self._cache, self._answers)
        self._nudged: dict[NamespacedName, float] = {}
        self._reached: dict[ObjectKey, tuple[list[dict[str, str]], set[ObjectKey]]] = {}
        """The labels of each Agent's pods and the servers that they ask, at its last reconcile."""

    async def reconcile(self, name: NamespacedName) -> float | None:
        """Reconcile an Agent, as the others are; first purge sessions of deleted ones."""
        orphaned = self._purge_jobs.orphaned(name)
        if orphaned and await self._claims.claim(name[0]):
            await self._purge_jobs.start(name, orphaned)
        return await super().reconcile(name)

    async def _observe(self, owner: Agent) -> _State:
        foreign_due = await self._foreign_servers.refresh(owner)
        pool = self._cache.pool((owner.namespace, owner.pool)) if owner.pool else None
        agent = hosted(owner, pool)
        observed = replace(self._cache.observe_and_track(agent), issuer=self._issuer.current)
        agent = with_model(with_tool_servers(agent, observed), observed)
        digest = ""
        if observed.hosting:
            digest, hosting = self._pools.place(agent, observed, observed.hosting)
            observed = replace(observed, hosting=hosting)
        self._queue_outdated_peers(agent)
        self._queue_servers(agent)
        return _State(agent, observed, digest, foreign_due)

    def _status(
        self, owner: Agent, state: _State, outcome: Outcome
    ) -> Callable[[str], Mapping[str, Any]]:
        agent, observed, missing = state.agent, state.observed, self._cache.missing_dependencies
        written = hosted(owner, observed.hosting.pool if observed.hosting else None)
        inputs = StatusInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            unresolved=unresolved_references(written, observed, self._platform.network.domain),
            deployment=self._cache.deployment(agent),
            pods=self._cache.pods(agent.key),
            missing_dependencies=missing.get(agent.key),
            former_degraded=None if agent.key in missing else former_degraded(agent),
            start_problem=self._cache.start_problems.get(agent.key),
            platform_rules=len(self._platform.policy),
            own_containers=agent.own_containers,
            cron_jobs=self._cache.cron_jobs(agent),
            scheduled_ends=self._cache.scheduled_ends.get(agent.key, {}),
        )
        if observed.hosting and (inputs.deployment is None or observed.hosting.is_served):
            inputs = self._pools.status_inputs(agent, observed, state.digest, inputs)
        return partial(agent_status, agent, inputs)

    async def _retry(self, owner: Agent, state: _State) -> float | None:
        due = state.foreign_due, await self._nudge(owner)
        return min(filter(None, due), default=None)

    async def _nudge(self, agent: Agent) -> float | None:
        """Trigger another try for refused pods; return the seconds until the next.

        Changing the Deployment's annotations changes its ReplicaSet, whose controller then tries
        again at once.
        """
        name, deployment = agent.namespaced_name, self._cache.deployment(agent)
        if deployment is None or refusal(deployment) is None:
            self._nudged.pop(name, None)
            return None
        now = time.monotonic()
        left = self._nudged.setdefault(name, now) + NUDGE_SECONDS - now
        if left > 0:
            return left
        self._nudged[name] = now
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._cache.put(DEPLOYMENT, await self._client.annotate(deployment, RETRIED, at))
        return NUDGE_SECONDS

    async def _make_children(self, owner: Agent, state: _State) -> None:  # noqa: ARG002
        agent, observed = state.agent, state.observed
        with as_rejection():
            try:
                children = desired_children(agent, observed, self._platform)
            except ExposeError:
                closed = closed_network_policy(agent, observed, self._platform)
                await self._applier.unexpose(agent, closed)
                raise
            except UnresolvedModel as error:
                raise Blocked(Problem(error.reason, f"{error}.")) from error
        await self._apply_children(agent, observed, children)

    async def _apply_children(
        self, agent: Agent, observed: ObservedState, children: Children
    ) -> None:
        """Apply children that have drifted, and delete those that are not desired any more."""
        live = await self._applier.find_live(agent, children.to_apply)
        is_mounted = access_config_map_name(agent) in mounted_config_maps(observed.deployment)
        if not (agent.is_open or observed.issuer or is_mounted):
            raise issuer_unknown(self._issuer.problem)
        waits = partial(self._waits, agent)
        try:
            with as_refusal(JOB.name):
                await self._purge_jobs.ensure(agent, children.purge_job)
            obstacle = await self._applier.apply_all(agent, children.to_apply, live, waits)
        finally:
            self._throttle.end(agent.namespaced_name)
        kept = [one for _, one in self._cache.children(agent)] if children.keeps_others else []
        desired = [*children.to_apply, *kept]
        await self._applier.delete_surplus(agent, desired, children.obsolete)
        if obstacle:
            raise obstacle
        if children.keeps_others and observed.deployment:
            raise moves_to_pool(agent.pool)
        for problem in pool_problems(agent, observed):
            raise Blocked(replace(problem, message=f"{problem.message}."))

    def _waits(self, agent: Agent, child: Object, live: Object | None) -> Blocked | None:
        """Return the obstacle of a Deployment whose rollout must wait."""
        if kind_of(child) is not DEPLOYMENT:
            return None
        problem = self._throttle.try_begin(agent, child, live)
        return Blocked(problem) if problem else None

    def _queue_outdated_peers(self, agent: Agent) -> None:
        """Queue referenced Agents whose access files are outdated."""
        for name in self._cache.peers(agent):
            peer, issuer = self._cache.agent(name), self._issuer.current
            if peer is None or issuer is None or peer.is_open:
                continue
            callers = self._cache.callers(peer)
            if peer.pool:
                content = access_content(peer, callers, issuer, self._platform.access)
                is_outdated = self._pools.has_other_access(peer, content)
            else:
                live = self._cache.find(CONFIG_MAP, (peer.namespace, access_config_map_name(peer)))
                text = access_text(peer, callers, issuer, self._platform.access)
                is_outdated = live is not None and (live.get("data") or {}).get(ACCESS_KEY) != text
            if is_outdated:
                self._queue.add(peer.key)

    def _queue_servers(self, agent: Agent) -> None:
        """Queue the ModelAPIs and MCPServers that let an Agent's pods in, if any have changed.

        Among them are the ModelAPIs to which others fall back.
        """
        referred = self._cache.references(agent.key)
        servers = {key for key in referred if key.kind in {MODEL_API, MCP_SERVER}}
        reached = self._cache.pod_selectors(agent), servers
        if self._reached.get(agent.key) != reached:
            self._reached[agent.key] = reached
            for key in servers:
                self._queue.add(key)

    def _forget(self, key: ObjectKey) -> None:
        super()._forget(key)
        self._throttle.forget(key.namespaced_name)
        self._reached.pop(key, None)
        self._nudged.pop(key.namespaced_name, None)
