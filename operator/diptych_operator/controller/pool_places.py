"""An Agent's place in a pool: its document there, and how the pool's pods serve it."""

from dataclasses import replace

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.pool_handover import PoolHandover
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.children import Platform, is_reached_in
from diptych_operator.desired.pool_documents import content_of, live_document
from diptych_operator.desired.references import Hosting, ObservedState
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import Object
from diptych_operator.resources.owner import ManifestError
from diptych_operator.status.conditions import StatusInputs
from diptych_operator.status.pooled import PooledAgent, ready_pods


class PoolPlaces:
    """Looks up the places of Agents; queues a pool that has an outdated document of one."""

    def __init__(
        self, cache: ObjectCache, queue: WorkQueue, handover: PoolHandover, platform: Platform
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._handover = handover
        self._platform = platform

    def place(self, agent: Agent, observed: ObservedState, hosting: Hosting) -> tuple[str, Hosting]:
        """Return the digest of an Agent's newest document, and how it is hosted.

        The digest is empty while the pool has no such document.
        """
        pool, digest = hosting.pool, ""
        record = self._handover.record(pool.key)
        try:
            if hosting.port is not None:
                content = content_of(agent, observed, self._platform, hosting.port)
                live = live_document(self._cache.config_maps(pool), agent.name)
                digest = live.digest if live and live.says(content) else ""
            if not digest:
                self._queue.add(pool.key)
        except (ManifestError, ValueError):  # the last good document stays
            pass
        served = self._pooled(agent, digest, pool).is_served
        refusal = record.refused.get(agent.name, "")
        return digest, replace(hosting, is_served=served, refusal=refusal)

    def status_inputs(
        self, agent: Agent, observed: ObservedState, digest: str, inputs: StatusInputs
    ) -> StatusInputs:
        """Return the inputs of an Agent's status as its pool's pods serve it."""
        if (hosting := observed.hosting) is None:
            return inputs
        pool = hosting.pool
        pooled = self._pooled(agent, digest, pool)
        deployment: Object | None = pooled.deployment(
            self._cache.deployment(pool), is_reached=is_reached_in(hosting, observed.service)
        )
        has_obstacle = bool(inputs.rejection or inputs.blocker)
        if has_obstacle and not pooled.is_known:  # as if it had no Deployment: the obstacle is why
            deployment = None
        problem = pooled.problem(pool)
        return replace(
            inputs, deployment=deployment, pods=(), start_problem=problem, pods_of=pool.name
        )

    def _pooled(self, agent: Agent, digest: str, pool: AgentPool) -> PooledAgent:
        ready = ready_pods(self._cache.pods(pool.key))
        reports = self._handover.record(pool.key).reports
        return PooledAgent(agent.name, digest, ready, reports)

    def has_other_access(self, agent: Agent, access: Object) -> bool:
        """Whether an Agent's document has another access file than this one."""
        pool = self._cache.pool((agent.namespace, agent.pool or ""))
        if pool is None:
            return False
        live = live_document(self._cache.config_maps(pool), agent.name)
        return live is not None and live.content["access"] != access
