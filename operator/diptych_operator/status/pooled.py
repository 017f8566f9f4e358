"""An Agent in a pool: how far the pool's pods serve it. Pure.

To the conditions, it is as if the Agent had a Deployment: a pod is of the newest revision if it
reports that the Agent's newest document is ready.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import Object
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import MissingDependency
from diptych_operator.status.pods import wanted_replicas

State: TypeAlias = Literal["starting", "ready", "draining", "failed"]
STATES: Final = frozenset(("starting", "ready", "draining", "failed"))


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """What a pod reports of an Agent; `digest` is that of the newest document it has."""

    digest: str
    state: State
    reason: str = ""
    missing: tuple[MissingDependency, ...] = ()
    scheduled: tuple[Object, ...] = ()
    """How the last run of each schedule ended, as the pod says it."""


Reports: TypeAlias = Mapping[str, Mapping[str, PoolEntry]]
"""By pod and Agent. A pod that does not answer is absent."""


def ready_pods(pods: Collection[Object]) -> frozenset[str]:
    """Name the pods that take requests."""
    return frozenset(
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            (one["type"], one["status"]) == ("Ready", "True")
            for one in (pod.get("status") or {}).get("conditions", ())
        )
    )


@dataclass(frozen=True, slots=True)
class PooledAgent:
    """An Agent by its name and its newest document's digest, and what the ready pods report."""

    name: str
    digest: str
    ready: Collection[str]
    reports: Reports

    @property
    def is_known(self) -> bool:
        """Whether some pod has it, in whatever form."""
        return any(self.name in entries for entries in self.reports.values())

    @property
    def is_served(self) -> bool:
        """Whether every ready pod serves it by that document."""
        found = [self.reports.get(pod, {}).get(self.name) for pod in self.ready]
        return bool(self.digest and found) and all(map(self._is_newest, found))

    def _is_newest(self, entry: PoolEntry | None) -> bool:
        return entry is not None and (entry.digest, entry.state) == (self.digest, "ready")

    def deployment(self, pool: Object | None, *, is_reached: bool) -> Object:
        """Return what stands for its Deployment; `pool` is the pool's.

        `is_reached` says that its Service points at the pool: then its former form serves while
        the newest starts.
        """
        wanted = wanted_replicas(pool)
        found = [self.reports.get(pod, {}).get(self.name) for pod in self.ready]
        entries = [entry for entry in found if entry]
        newest = [entry for entry in entries if self._is_newest(entry)]
        states = {"ready", "starting"} if is_reached else {"ready"}
        status = {
            "replicas": wanted,
            "updatedReplicas": min(len(newest), wanted),
            "availableReplicas": sum(entry.state in states for entry in entries),
        }
        return {"metadata": {}, "spec": {"replicas": wanted}, "status": status}

    def problem(self, pool: AgentPool) -> Problem | None:
        """Return what keeps it from being served by its pool."""
        for pod, entries in sorted(self.reports.items()):
            entry = entries.get(self.name)
            if entry and (entry.digest, entry.state) == (self.digest, "failed"):
                message = f"The agent does not start in pod {pod}: {entry.reason}"
                return Problem("ConfigError", message)
        if self.ready:
            return None
        message = f"No pod of AgentPool {pool.name} is ready; its condition Ready says why."
        return Problem("PoolNotReady", message)
