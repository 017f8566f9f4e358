"""The whole status of an Agent: `agent_status(agent, inputs, now)`. Pure."""

from collections.abc import Mapping
from typing import Any

from diptych_operator.resources.agent import Agent
from diptych_operator.resources.labels import selector_labels
from diptych_operator.status.advice import advice
from diptych_operator.status.condition import Condition
from diptych_operator.status.conditions import StatusInputs, conditions
from diptych_operator.status.deployments import count_of, rollout_deadline
from diptych_operator.status.problem import NOT_EXPOSED

MAX_MESSAGE = 2048  # characters; the CRD allows twice as many


def agent_status(agent: Agent, inputs: StatusInputs, now: str) -> dict[str, Any]:
    """Give the whole status. `now` becomes the time of conditions whose status has changed."""
    former = {c["type"]: c for c in agent.status.get("conditions", ())}
    shown = conditions(inputs)
    if any(tool.get("pin") for tool in agent.tools):
        shown += (_tools_drifted(inputs, former.get("ToolsDrifted")),)
    since = {one.type: _transition_time(former.get(one.type), one, now) for one in shown}
    told = advice(agent.name, shown, since, rollout_deadline(inputs.deployment))
    shown += (access_open(agent),)
    order = {kind: place for place, kind in enumerate(former)}  # the API keeps it: so must we
    labels = selector_labels(agent.name).items()
    return {
        "advice": told,
        "observedGeneration": agent.generation,
        "replicas": count_of(inputs.deployment, "replicas"),
        "pods": f"{count_of(inputs.deployment, 'availableReplicas')}/{agent.replicas}",
        "selector": ",".join(sorted(f"{name}={value}" for name, value in labels)),
        "url": _url(agent, inputs),
        "sessions": agent.sessions_key,
        "conditions": [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message[:MAX_MESSAGE],
                "observedGeneration": agent.generation,
                "lastTransitionTime": _transition_time(former.get(condition.type), condition, now),
            }
            for condition in sorted(shown, key=lambda one: order.get(one.type, len(order)))
        ],
    }


def _url(agent: Agent, inputs: StatusInputs) -> str:
    """Give where the Agent is reached; "" if it never was: its name may lead to somebody else's.

    It is the URL inside if the Agent may not be exposed as it asks.
    """
    if inputs.rejection is None:
        return agent.shown_url
    if inputs.deployment is None:
        return ""
    return agent.url if inputs.rejection.reason in NOT_EXPOSED else agent.shown_url


def former_degraded(agent: Agent) -> Mapping[str, Any] | None:
    """Give the Degraded condition that an Agent's status has, be it of an earlier operator."""
    conditions_then = agent.status.get("conditions", ())
    return next((dict(c) for c in conditions_then if c["type"] == "Degraded"), None)


def access_open(agent: Agent) -> Condition:
    """Give the condition that says whether whoever reaches the Agent must prove who it is."""
    if agent.is_open:
        message = (
            "Everybody who reaches a pod may do everything (spec.access.mode: open); the "
            "NetworkPolicy alone decides who that is."
        )
        return Condition("AccessOpen", "True", "AccessOpen", message)
    return Condition("AccessOpen", "False", "TokenRequired", "Callers must prove who they are.")


def _tools_drifted(inputs: StatusInputs, former: Mapping[str, Any] | None) -> Condition:
    """Say which pinned tools have changed; as before while no pod has been asked."""
    if inputs.missing_dependencies is None:
        if former is not None:
            return Condition("ToolsDrifted", former["status"], former["reason"], former["message"])
        return Condition("ToolsDrifted", "Unknown", "NotAsked", "No pod has answered yet.")
    drifts = [missing for missing in inputs.missing_dependencies if missing.is_drift]
    if not drifts:
        return Condition("ToolsDrifted", "False", "AsPinned", "No tool differs from its pin.")
    lines = dict.fromkeys(f"{drift.name}: {drift.reason}" for drift in drifts)
    message = f"{'; '.join(lines)}. Look at these tools, then pin them anew (`diptych pin`)."
    return Condition("ToolsDrifted", "True", "ToolsChanged", message)


def _transition_time(former: Mapping[str, Any] | None, condition: Condition, now: str) -> str:
    if former is None or former["status"] != condition.status:
        return now
    since: str = former["lastTransitionTime"]
    return since
