"""The parts that the statuses of ModelAPIs and MCPServers have in common. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych_operator.desired.rollout import is_rolled_out
from diptych_operator.resources.kinds import Object
from diptych_operator.status.condition import GOES_ON_BY_ITSELF, Condition, ConditionType, Problem
from diptych_operator.status.pods import count_of, pod_problem, refusal, wanted_replicas

_MAX_TEXT = 256  # characters of what a pod says


@dataclass(frozen=True, slots=True)
class OwnerInputs:
    """The inputs of an owner's conditions.

    `rejection` says why the manifest cannot be served, `blocker` why what it needs could not be
    applied. `deployments` are those that it should have, None for one that is not there. `agents`
    counts the Agents that use it.
    """

    rejection: Problem | None = None
    blocker: Problem | None = None
    deployments: Sequence[Object | None] = ()
    pods: Sequence[Object] = ()
    start_problem: Problem | None = None
    agents: int = 0

    @property
    def obstacle(self) -> Problem | None:
        return self.rejection or self.blocker

    @property
    def is_rolled_out(self) -> bool:
        return all(map(is_rolled_out, self.deployments))

    @property
    def available(self) -> int:
        """How many pods can take requests."""
        return sum(count_of(one, "availableReplicas") for one in self.deployments)

    @property
    def pods_problem(self) -> Problem | None:
        """The problem that keeps the newest pods from serving; None while they start."""
        if refused := next(filter(None, map(refusal, self.deployments)), None):
            return refused
        deployment = self.deployments[0] if len(self.deployments) == 1 else None
        problems = [found for pod in self.pods if (found := pod_problem(pod, deployment))]
        return min(problems, key=lambda one: one.reason, default=self.start_problem)


def accepted(inputs: OwnerInputs) -> Condition:
    """Return the condition Accepted."""
    if problem := inputs.rejection:
        return Condition("Accepted", "False", problem.reason, problem.message)
    return Condition("Accepted", "True", "Accepted", "The manifest can be served.")


def kstatus(inputs: OwnerInputs) -> Iterator[Condition]:
    """Return the conditions for kstatus: Stalled, Reconciling, or neither."""
    refused = filter(None, map(refusal, inputs.deployments))
    problem = inputs.obstacle or next(refused, None)
    if problem:
        kind: ConditionType = "Reconciling" if problem.reason in GOES_ON_BY_ITSELF else "Stalled"
        yield Condition(kind, "True", problem.reason, problem.message)
    elif not inputs.is_rolled_out:
        yield Condition("Reconciling", "True", "RollingOut", "A rollout is going on.")


def pod_counts(inputs: OwnerInputs, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a status about pods with these labels."""
    wanted = sum(map(wanted_replicas, inputs.deployments))
    return {
        "replicas": sum(count_of(one, "replicas") for one in inputs.deployments),
        "pods": f"{inputs.available}/{wanted}",
        "selector": ",".join(sorted(f"{name}={value}" for name, value in labels.items())),
    }


def shortened(value: object) -> str:
    """Return the words of a pod or server as a short line."""
    return " ".join(str(value or "").split())[:_MAX_TEXT]
