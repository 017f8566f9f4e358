"""The conditions of an Agent, and its whole status: `agent_status(agent, inputs, now)`. Pure.

They are the API; there is no phase. Ready means that the newest revision's pods can take work,
Available that those of any revision can. A manifest that is rejected, or cannot be applied, leaves
the last good revision serving, and Ready says so. Reconciling and Stalled are there for kstatus,
each only while it is True.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diptych_operator.desired.drift import added_fields
from diptych_operator.desired.rollout import is_rolled_out
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Object
from diptych_operator.status.advice import advice
from diptych_operator.status.condition import (
    GOES_ON_BY_ITSELF,
    LEAVES_PODS_ALONE,
    NOT_EXPOSED,
    Condition,
    Problem,
    transition_time,
    written,
)
from diptych_operator.status.pods import (
    agent_image,
    count_of,
    deployment_condition,
    is_paused,
    pod_problem,
    refusal,
    rollout_deadline,
    wanted_replicas,
)
from diptych_operator.status.schedules import failure, schedule_status


@dataclass(frozen=True, slots=True)
class MissingDependency:
    """Something that a pod's `/ready` reports as missing."""

    kind: str
    name: str
    reason: str

    @property
    def trouble(self) -> str:
        """The key of its reason in `_MISSING_REASONS`."""
        if self.is_drift:
            return "drift"
        return "full" if self.kind == "store" and self.reason.startswith("full ") else self.kind

    @property
    def is_drift(self) -> bool:
        """Whether it stands for tools that are not as the manifest pinned them."""
        return self.kind == "tool" and self.reason.startswith("changed")


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """The inputs of an Agent's conditions.

    `rejection` says why the manifest cannot be served, `blocker` why the desired state could not
    be applied. `missing_dependencies` is None as long as no pod has answered. `former_degraded` is
    the Degraded condition that an earlier operator wrote; it holds until this one has polled.
    `start_problem` keeps a pod from starting, by its Events.
    `platform_rules` is how many rules the platform has for the calls of all Agents.
    """

    rejection: Problem | None = None
    blocker: Problem | None = None
    unresolved: Sequence[Problem] = ()
    deployment: Object | None = None
    pods: Sequence[Object] = ()
    missing_dependencies: Sequence[MissingDependency] | None = None
    former_degraded: Mapping[str, Any] | None = None
    start_problem: Problem | None = None
    platform_rules: int = 0
    own_containers: frozenset[str] = frozenset()
    """The names of the containers that the manifest itself adds to its pods."""
    pods_of: str = ""
    """The pool whose pods serve it, if its own do not."""
    cron_jobs: Sequence[Object] = ()
    scheduled_ends: Mapping[str, Object] = field(default_factory=dict)


def conditions(inputs: StatusInputs) -> tuple[Condition, ...]:
    """Return the six conditions, and Drifted, Reconciling or Stalled while they hold."""
    inputs = _with_image(inputs)
    progressing = _progressing(inputs)
    return (
        _accepted(inputs),
        _resolved_refs(inputs),
        progressing,
        _available(inputs),
        _ready(inputs),
        _degraded(inputs),
        *_drifted(inputs),
        *_kstatus(inputs, progressing),
    )


def _with_failed_schedules(
    inputs: StatusInputs, schedules: Sequence[Mapping[str, str]]
) -> StatusInputs:
    failed = [
        MissingDependency("schedule", schedule["name"], why)
        for schedule in schedules
        if (why := failure(schedule))
    ]
    if not failed or inputs.missing_dependencies is None:
        return inputs
    return replace(inputs, missing_dependencies=(*inputs.missing_dependencies, *failed))


def _accepted(inputs: StatusInputs) -> Condition:
    if inputs.rejection:
        return Condition("Accepted", "False", inputs.rejection.reason, inputs.rejection.message)
    message = "The manifest can be served."
    if count := inputs.platform_rules:
        hold = "1 rule holds" if count == 1 else f"{count} rules hold"
        message += f" Of the platform's policy (agents.policy), {hold} for its calls, too."
    return Condition("Accepted", "True", "Accepted", message)


def _resolved_refs(inputs: StatusInputs) -> Condition:
    if not inputs.unresolved:
        message = "All that the manifest names is there."
        return Condition("ResolvedRefs", "True", "ResolvedRefs", message)
    messages = dict.fromkeys(problem.message for problem in inputs.unresolved)
    return Condition("ResolvedRefs", "False", inputs.unresolved[0].reason, "; ".join(messages))


def _progressing(inputs: StatusInputs) -> Condition:
    if inputs.blocker:
        return Condition("Progressing", "False", inputs.blocker.reason, inputs.blocker.message)
    if inputs.rejection:
        return Condition("Progressing", "False", "NotAccepted", "Nothing is changed meanwhile.")
    if is_paused(inputs.deployment):
        message = (
            "Somebody has paused the Deployment, so that changes wait; "
            "`kubectl rollout resume deployment` of the Agent's name goes on."
        )
        return Condition("Progressing", "False", "Paused", message)
    if is_rolled_out(inputs.deployment):
        return Condition("Progressing", "False", "UpToDate", "All pods run the newest revision.")
    if refused := refusal(inputs.deployment):
        return Condition("Progressing", "False", refused.reason, refused.message)
    live = deployment_condition(inputs.deployment, "Progressing")
    if live.get("reason") == "ProgressDeadlineExceeded":
        message = "The newest revision does not come up; Ready says why."
        return Condition("Progressing", "False", "Stuck", message)
    new, wanted = count_of(inputs.deployment, "updatedReplicas"), wanted_replicas(inputs.deployment)
    message = f"A rollout is going on: {new} of {wanted} pods of the newest revision are made."
    return Condition("Progressing", "True", "RollingOut", message)


def _available(inputs: StatusInputs) -> Condition:
    available = count_of(inputs.deployment, "availableReplicas")
    if available:
        message = f"{available} {'pod' if available == 1 else 'pods'} can take work."
        return Condition("Available", "True", "Available", message)
    is_asked_for = inputs.deployment is not None and not wanted_replicas(inputs.deployment)
    reason = "ScaledToZero" if is_asked_for else "NoPodAvailable"
    return Condition("Available", "False", reason, "No pod can take work.")


def _with_image(inputs: StatusInputs) -> StatusInputs:
    """Add the image's name if a tool server's program is missing; the pod does not know it."""
    image, missing = agent_image(inputs.deployment), []
    for one in inputs.missing_dependencies or ():
        if one.kind == "server" and (found := _NO_PROGRAM.fullmatch(one.reason)):
            why = f"the image {image} lacks it, and tool server {one.name} needs it"
            one = MissingDependency("program", found[1], f"{why} (spec.container.image)")  # noqa: PLW2901
        missing.append(one)
    return replace(inputs, missing_dependencies=missing) if missing else inputs


def _drifted(inputs: StatusInputs) -> Iterator[Condition]:
    """Return the condition for others' additions to the pod template, if any."""
    if added := added_fields(inputs.deployment):
        fields = ", ".join(f"{path} (by {manager})" for path, manager in sorted(added.items()))
        message = f"The pods have what no manifest says, added to their Deployment: {fields}."
        yield Condition("Drifted", "True", "FieldsAdded", message)


def _kstatus(inputs: StatusInputs, progressing: Condition) -> Iterator[Condition]:
    """Return the conditions for kstatus: Stalled, Reconciling, or neither."""
    obstacle = inputs.rejection or inputs.blocker
    if obstacle is None and progressing.reason in _STANDSTILL:
        obstacle = Problem(progressing.reason, progressing.message)
    if obstacle and obstacle.reason not in GOES_ON_BY_ITSELF:
        yield Condition("Stalled", "True", obstacle.reason, obstacle.message)
    elif obstacle or progressing.status == "True":
        yield Condition("Reconciling", "True", progressing.reason, progressing.message)


def _ready(inputs: StatusInputs) -> Condition:
    if inputs.deployment is None:
        problem = inputs.rejection or inputs.blocker
        reason = problem.reason if problem else "RollingOut"
        return Condition("Ready", "False", reason, "There are no pods yet.")
    if is_rolled_out(inputs.deployment):
        return _ready_when_rolled_out(inputs)
    available = count_of(inputs.deployment, "availableReplicas")
    problem = _pods_problem(inputs)
    if problem is None and is_paused(inputs.deployment):
        problem = Problem("Paused", _progressing(inputs).message)
    problem = problem or _store_problem(inputs)
    message = problem.message if problem else _availability(inputs)
    older = count_of(inputs.deployment, "replicas") - count_of(inputs.deployment, "updatedReplicas")
    if available and older > 0:
        message += "" if message.endswith(".") else "."
        message += " The revision before it keeps serving meanwhile."
    return Condition("Ready", "False", problem.reason if problem else "RollingOut", message)


def _ready_when_rolled_out(inputs: StatusInputs) -> Condition:
    if wanted_replicas(inputs.deployment) == 0:
        message = "The agent is scaled to no pods, as its manifest says."
        return Condition("Ready", "True", "ScaledToZero", message)
    if problem := _store_problem(inputs):
        return Condition("Ready", "False", problem.reason, problem.message)
    message = _availability(inputs)
    if inputs.rejection:
        message += " The manifest was not accepted; the last good revision keeps serving."
        return Condition("Ready", "True", "LastGoodRevision", message)
    if inputs.blocker and inputs.blocker.reason not in LEAVES_PODS_ALONE:
        message += " Not all that it needs could be applied; the last good revision keeps serving."
        return Condition("Ready", "True", "LastGoodRevision", message)
    is_degraded = _degraded(inputs).status == "True"
    return Condition("Ready", "True", "Degraded" if is_degraded else "Ready", message)


def _degraded(inputs: StatusInputs) -> Condition:
    missing = inputs.missing_dependencies or ()
    messages = [problem.message for problem in inputs.unresolved]
    messages += [f"{one.kind} {one.name}: {one.reason}" for one in missing]
    if inputs.unresolved:  # the nearest cause: pods cannot have what the cluster does not
        reason = inputs.unresolved[0].reason
    elif inputs.former_degraded is not None:
        fields = (inputs.former_degraded[field] for field in ("status", "reason", "message"))
        return Condition("Degraded", *fields)
    elif inputs.missing_dependencies is None:
        message = "No pod has answered the operator yet, so missing dependencies are unknown."
        return Condition("Degraded", "Unknown", "NotAsked", message)
    elif not missing:
        return Condition("Degraded", "False", "NothingMissing", "All that the agent uses is there.")
    else:
        troubles = {one.trouble for one in missing}
        reason = (
            _MISSING_REASONS.get(troubles.pop(), "Missing") if len(troubles) == 1 else "Missing"
        )
    return Condition("Degraded", "True", reason, "; ".join(dict.fromkeys(messages)))


def _pods_problem(inputs: StatusInputs) -> Problem | None:
    """Return what keeps the newest revision's pods from becoming ready."""
    if refused := refusal(inputs.deployment):
        return refused
    problems = [
        problem
        for pod in inputs.pods
        if (problem := pod_problem(pod, inputs.deployment, inputs.own_containers))
    ]
    return min(problems, key=lambda problem: problem.reason, default=inputs.start_problem)


def _store_problem(inputs: StatusInputs) -> Problem | None:
    """Return why pods take no runs: their store, or the name server before it."""
    for one in inputs.missing_dependencies or ():
        match one.trouble:
            case "full":
                message = f"The pods take no new runs: the store is {one.reason}."
                return Problem("StoreFull", message)
            case "store":
                return Problem("StoreUnavailable", f"The pods take no work: {one.reason}.")
            case "dns" if not is_rolled_out(inputs.deployment):
                return Problem("NameServerSilent", f"For {one.name}: {one.reason}.")
    return None


def _availability(inputs: StatusInputs) -> str:
    available = count_of(inputs.deployment, "availableReplicas")
    return f"{available} of {wanted_replicas(inputs.deployment)} pods can take work."


_STANDSTILL = {"Paused", "PodsRefused", "Stuck"}
_NO_PROGRAM = re.compile(r"no program (\S+)(?: on PATH)?(?: \(pod .*\))?")
"""What a pod says of a stdio server that it cannot start."""
_MISSING_REASONS = {
    "program": "ProgramMissing",
    "server": "ToolServerUnavailable",
    "tool": "ToolsLeftOut",
    "drift": "ToolsDrifted",
    "agent": "AgentUnavailable",
    "key": "KeyMissing",
    "model": "ModelUnavailable",
    "store": "StoreUnavailable",
    "rule": "RuleMatchesNothing",
    "full": "StoreFull",
    "dns": "NameServerSilent",
    "pod": "TokenRefused",
    "schedule": "ScheduleFailed",
}


def agent_status(agent: Agent, inputs: StatusInputs, now: str) -> dict[str, Any]:
    """Return the whole status. `now` becomes the time of conditions whose status has changed."""
    former = {c["type"]: c for c in agent.status.get("conditions", ())}
    schedules = schedule_status(agent, inputs.cron_jobs, inputs.scheduled_ends, now)
    shown = conditions(_with_failed_schedules(inputs, schedules))
    if any(tool.get("pin") for tool in agent.tools):
        shown += (_tools_drifted(inputs, former.get("ToolsDrifted")),)
    since = {one.type: transition_time(former.get(one.type), one, now) for one in shown}
    pods = inputs.pods_of or agent.name
    summary = advice(agent.name, shown, since, rollout_deadline(inputs.deployment), pods)
    shown += (access_open(agent),)
    labels = agent.selector_labels.items()
    wanted = wanted_replicas(inputs.deployment) if agent.pool else agent.replicas
    return {
        "advice": summary,
        "observedGeneration": agent.generation,
        "replicas": count_of(inputs.deployment, "replicas"),
        "pods": f"{count_of(inputs.deployment, 'availableReplicas')}/{wanted}",
        "selector": ",".join(sorted(f"{name}={value}" for name, value in labels)),
        "url": _url(agent, inputs),
        "sessions": agent.sessions_key,
        **({"schedules": schedules} if schedules else {}),
        "conditions": written(agent, shown, now),
    }


def _url(agent: Agent, inputs: StatusInputs) -> str:
    """Return the Agent's URL.

    "" if it was never served, as its name may be somebody else's. It is the internal URL if the
    Agent may not be exposed as requested.
    """
    if inputs.rejection is None:
        return agent.shown_url
    if inputs.deployment is None:
        return ""
    return agent.url if inputs.rejection.reason in NOT_EXPOSED else agent.shown_url


def former_degraded(agent: Agent) -> Mapping[str, Any] | None:
    """Return the Degraded condition in an Agent's status, which an earlier operator may have
    set.
    """
    conditions_then = agent.status.get("conditions", ())
    return next((dict(c) for c in conditions_then if c["type"] == "Degraded"), None)


def access_open(agent: Agent) -> Condition:
    """Return the condition that says whether callers must prove who they are."""
    if agent.is_open:
        message = (
            "Everybody who reaches a pod may do everything (spec.access.mode: open); the "
            "NetworkPolicy alone decides who that is."
        )
        return Condition("AccessOpen", "True", "AccessOpen", message)
    return Condition("AccessOpen", "False", "TokenRequired", "Callers must prove who they are.")


def _tools_drifted(inputs: StatusInputs, former: Mapping[str, Any] | None) -> Condition:
    """Return which pinned tools have changed; as before while no pod has been asked."""
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
