"""Reconciles Agents.

A reconcile observes, decides, applies, deletes surplus children and writes the status.

Level-based: whatever has changed, the whole Agent is reconciled, and a child that has not drifted
costs no request. So the outcome depends on the current state alone, not on which event came, and
a crash between two writes does no harm.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from diptych_operator.controller.apply import Answers, Applier
from diptych_operator.controller.attempts import Attempts
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.foreign_servers import ForeignServers
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.obstacles import (
    Blocked,
    as_refusal,
    as_rejection,
    issuer_unknown,
    moves_to_pool,
)
from diptych_operator.controller.pool_places import PoolPlaces
from diptych_operator.controller.purge_jobs import PurgeJobs
from diptych_operator.controller.rollout_throttle import RolloutThrottle
from diptych_operator.controller.status_writer import StatusWriter
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.access import (
    ACCESS_KEY,
    access_config_map_name,
    access_content,
    access_text,
)
from diptych_operator.desired.agent_model import UnresolvedModel, with_model
from diptych_operator.desired.children import (
    Children,
    Platform,
    closed_network_policy,
    desired_children,
)
from diptych_operator.desired.pool_documents import hosted
from diptych_operator.desired.references import ObservedState
from diptych_operator.desired.rollout import mounted_config_maps
from diptych_operator.desired.tool_servers import with_tool_servers
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.agent import Agent, ExposeError
from diptych_operator.resources.kinds import (
    AGENT,
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


class Reconciler:
    """Makes the cluster match the Agents."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        claims: NamespaceClaims,
        issuer: ClusterIssuer,
        platform: Platform,
        metrics: Metrics,
        pools: PoolPlaces,
        now: Callable[[], str],
    ) -> None:
        """`now` returns the time as the API writes it, in whole seconds."""
        self._client = client
        self._cache = cache
        self._queue = queue
        self._claims = claims
        self._issuer = issuer
        self._platform = platform
        self._pools = pools
        answers = Answers(cache, queue)
        self._status_writer = StatusWriter(client, cache, answers, now)
        self._throttle = RolloutThrottle(cache, queue, platform.pods.rollout, metrics)
        self._applier = Applier(client, cache, answers, platform.pods.locked)
        self._foreign_servers = ForeignServers(client, cache)
        self._purge_jobs = PurgeJobs(client, cache, answers)
        self._attempts = Attempts()
        self._nudged: dict[NamespacedName, float] = {}
        self._reached: dict[ObjectKey, tuple[list[dict[str, str]], set[ObjectKey]]] = {}
        """The labels of each Agent's pods and the servers that they ask, at its last reconcile."""

    async def reconcile(self, name: NamespacedName) -> float | None:
        """Reconcile an Agent; return the seconds after which to reconcile it again, or None.

        Raises `ApiError` if the API failed and a retry may help.
        """
        agent = self._cache.agent(name)
        if agent is None or agent.is_terminating:  # the garbage collector deletes its children
            self._forget(name)
            agent = None
        orphaned = self._purge_jobs.orphaned(name)
        if agent is None and not orphaned:
            return None
        if not await self._claims.claim(name[0]):
            return None  # another operator serves it; if that one goes, `claims` queues the Agent
        await self._purge_jobs.start(name, orphaned)
        return await self._reconcile(agent) if agent else None

    async def _reconcile(self, agent: Agent) -> float | None:
        """Reconcile an Agent that is there, in a namespace that this operator serves."""
        if self._issuer.current is None and not agent.is_open:
            await self._issuer.refresh()
        foreign = await self._foreign_servers.refresh(agent)
        if agent.pool:
            agent = hosted(agent, self._cache.pool((agent.namespace, agent.pool)))
        observed = replace(self._cache.observe_and_track(agent), issuer=self._issuer.current)
        unresolved = partial(unresolved_references, agent)
        agent = with_model(with_tool_servers(agent, observed), observed)
        digest = ""
        if observed.hosting:
            digest, hosting = self._pools.place(agent, observed, observed.hosting)
            observed = replace(observed, hosting=hosting)
        self._queue_outdated_peers(agent)
        self._queue_servers(agent)
        outcome = await self._attempts.outcome(agent, self._make_children(agent, observed))
        missing = self._cache.missing_dependencies
        inputs = StatusInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            unresolved=unresolved(observed, self._platform.network.domain),
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
            inputs = self._pools.status_inputs(agent, observed, digest, inputs)
        again = await self._status_writer.write(agent, partial(agent_status, agent, inputs))
        if outcome.failure:
            raise outcome.failure
        nudge = await self._nudge(agent)
        return min(filter(None, (again, nudge, foreign, outcome.retry_after)), default=None)

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

    async def _make_children(self, agent: Agent, observed: ObservedState) -> None:
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

    def _forget(self, name: NamespacedName) -> None:
        key = ObjectKey(AGENT, *name)
        for referred in self._cache.forget(key):
            self._queue.add(referred)
        self._applier.forget(key)
        self._status_writer.forget(key)
        self._throttle.forget(name)
        self._attempts.forget(key)
        self._reached.pop(key, None)
        self._nudged.pop(name, None)
