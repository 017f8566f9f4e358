"""The status of an AgentPool. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.status.advice import advice
from diptych_operator.status.condition import transition_time, written
from diptych_operator.status.conditions import StatusInputs, conditions
from diptych_operator.status.pods import count_of, rollout_deadline

_SHOWN: Final = {
    "Accepted",
    "Progressing",
    "Available",
    "Ready",
    "Drifted",
    "Reconciling",
    "Stalled",
}


def pool_status(
    pool: AgentPool, inputs: StatusInputs, numbers: Mapping[str, int], agents: int, now: str
) -> dict[str, Any]:
    """Return the whole status. `numbers` are those of the Agents' ports."""
    former = {c["type"]: c for c in pool.status.get("conditions", ())}
    shown = [one for one in conditions(inputs) if one.type in _SHOWN]
    since = {one.type: transition_time(former.get(one.type), one, now) for one in shown}
    labels = pool.selector_labels.items()
    return {
        "advice": advice(pool.name, shown, since, rollout_deadline(inputs.deployment), pool.name),
        "observedGeneration": pool.generation,
        "replicas": count_of(inputs.deployment, "replicas"),
        "pods": f"{count_of(inputs.deployment, 'availableReplicas')}/{pool.replicas}",
        "selector": ",".join(sorted(f"{name}={value}" for name, value in labels)),
        "agents": agents,
        "ports": dict(sorted(numbers.items())),
        "url": pool.url,
        "conditions": written(pool, shown, now),
    }
