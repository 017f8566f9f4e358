"""A summary of an Agent's conditions for people: what is wrong, and what to do. Pure.

It stands in `status.advice`, before the conditions by its name, so that `kubectl describe` shows it
first. Programs read the conditions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from diptych_operator.resources.kinds import ALLOWED_NAMESPACES
from diptych_operator.status.condition import GOES_ON_BY_ITSELF, Condition, ConditionType

FINE: Final = "Nothing is wrong, and there is nothing to do."
_MAX_WRONG = 400  # characters of what is wrong

_SEE_PODS = "Look at its pods: kubectl describe pods -l app.kubernetes.io/instance={pods}."
_WAIT = "Wait until {until}; if it is not done by then, this says what it waits for."
_WAIT_A_MINUTE = "Wait a minute; if nothing has changed by then, read the operator's log."
_REMEDIES: Final = {
    "FieldLocked": "Take the field out of the Agent, or have agents.locked of the chart changed.",
    "MetadataNotAllowed": "Take the key out of spec.metadata, or have the platform allow it.",
    "ScheduleInvalid": "Correct the schedule or trigger that the message names.",
    "PolicyInvalid": "Correct the expression at the place that the message names.",
    "ExposeNotAllowed": "Choose a host or way that the platform allows, or have it allowed.",
    "HostConflict": "Choose another spec.expose.host, or delete the Agent that has it.",
    "NameConflict": "Rename the Agent, or delete the object that has its name.",
    "Forbidden": "Give the operator its rights back, by an upgrade of its Helm release.",
    "Denied": "Change what the rule forbids in the Agent, or have the rule changed.",
    "WriteFailed": "See why the API server or a webhook refuses, and mend that; it is tried again.",
    "KindMissing": "Install the CRD that the message names, or take the field out of the Agent.",
    "Paused": "Resume the rollout: kubectl rollout resume deployment {agent}.",
    "PodsRefused": "Raise the quota or change the rule that refuses the pods, or ask for less.",
    "ScaledToZero": "Set spec.replicas, or `kubectl scale`, for it to serve.",
    "Stuck": _SEE_PODS,
    "IssuerUnknown": "Let the operator read /.well-known/openid-configuration of the API server.",
    "ImagePullFailed": "Correct the image's name, push the image, or give its pull Secret.",
    "ContainerNotMade": "Correct what the message names in the Agent or in its podTemplate.",
    "CrashLooping": "Read why by that command, and mend that.",
    "ConfigError": "Correct what the message names, and apply the Agent again.",
    "OutOfMemory": "Raise spec.container.resources.limits.memory, or give the agent less at once.",
    "NodeSilent": "Bring that node back, or delete it, for its pods to be made anew on others.",
    "VolumeNotMounted": "Create what the message names, or correct the volume in the podTemplate.",
    "PodNotStarted": _SEE_PODS,
    "Unschedulable": "Ask for less, add a node, or correct the podTemplate's choice of nodes.",
    "PodFailed": _SEE_PODS,
    "StoreUnavailable": "Bring its Redis back, or correct spec.sessions.redis and its Secret.",
    "StoreFull": "Raise its maxmemory, or have runs expire sooner (spec.sessions.retention).",
    "NameServerSilent": "Bring the cluster's DNS back, or let the pods reach it (NetworkPolicies).",
    "TokenRefused": "See `kubectl logs` of that pod, and the clocks of both nodes.",
    "NotAsked": "Wait a minute; if it stays so, let the operator reach the pods' port 8000.",
    "FormerOwner": "Wait a minute; if it is still there then, see what its finalizers wait for.",
    "WaitsForOthers": "Wait ten minutes for each of those; `diptych status` names a stuck one.",
    "RolloutStopped": "Mend the Agent that the message names, or take the change back.",
    "ModelUnavailable": "See that the endpoint of spec.model, or its ModelAPI, answers and takes "
    "the key: `diptych check --online FILE`, or kubectl logs -l app.kubernetes.io/instance={pods}.",
    "ToolServerUnavailable": "Bring the tool server back, sign in to it, or correct its entry in "
    "spec.tools.",
    "ProgramMissing": "Build an image FROM ours that has the program: docs/tools.md shows how.",
    "ToolsLeftOut": "Correct what the tool server lists, or leave the tool out by tools[].allow.",
    "FieldsAdded": "Take it out (kubectl edit deployment {agent}), or say it in spec.container or "
    "spec.podTemplate.",
    "ToolsDrifted": "Look at the tools that changed, then pin them anew: `diptych pin`, or in the "
    "MCPServer that pins them.",
    "AgentUnavailable": "See why that agent does not answer: kubectl describe agent of its name.",
    "RuleMatchesNothing": "Correct the name in that field of the Agent, or remove the entry.",
    "ScheduleFailed": "See `/v1/runs` of the Agent, and the logs of the schedule's Job.",
    "KeyMissing": "Create the Secret or ConfigMap with that key; it is read without a restart.",
    "Missing": "Mend what the message names, one after the other.",
    "PoolNotFound": "Create that AgentPool, or correct spec.hosting.pool.",
    "PoolFull": "Raise maxAgents of that AgentPool, or choose another one.",
    "PoolNotReady": "See why its pods are not ready: kubectl describe agentpool.",
    "NotInPool": "Take these fields out of the Agent, or spec.hosting.",
    "AgentNotFound": "Create that Agent, or take it out of spec.agents.",
    "AgentNotAllowed": "Have that Agent's spec.allowedNamespaces let this namespace in.",
    "MCPServerNotFound": "Create that MCPServer, or correct its name in spec.tools.",
    "MCPServerNotAllowed": "Have its allowedNamespaces (or annotation) let this namespace in.",
    "KindNotFound": "Install that kind's CRD, or correct apiGroup and kind in spec.tools.",
    "KindNotReadable": "Have the platform list it in the chart's value rbac.toolServerKinds.",
    "NoAddress": "See why that object has no URL yet, or take it out of spec.tools.",
    "ToolsNotAllowed": "Allow what the MCPServer allows, or have its tools.allow extended.",
    "PinsDiffer": "Take the pin out of the Agent, or have the MCPServer's corrected.",
    "NamespaceNotWatched": "Let the operator watch that namespace (watchNamespaces).",
    "NamespaceLabelsUnknown": "Choose namespaces by name, or let the operator watch all.",
    "ModelAPINotFound": "Create that ModelAPI, or correct spec.model.apiRef.",
    "ModelAPINotAllowed": "Have that ModelAPI's spec.allowedNamespaces let this namespace in.",
    "ModelNotListed": "Name a model that the ModelAPI serves, or have its spec.models take it.",
    "PricesMissing": "Write the prices, or take cost out of spec.budget.",
    "FallbackHasKey": "Have that fallback written as a ModelAPI, and named by apiRef.",
    "ServiceNotAllowed": "Have that Service's annotation "
    f"{ALLOWED_NAMESPACES} let this namespace in.",
    "ServiceNotFound": "Create that Service, or correct its name in the Agent.",
    "ServicePortNotFound": "Correct the port in the Agent, or in that Service.",
}


def advice(
    agent: str,
    conditions: Sequence[Condition],
    since: Mapping[ConditionType, str],
    until: str | None,
    pods: str,
) -> str:
    """Return two sentences about an Agent by its name: what is wrong, and what to do about it.

    `pods` is the instance label of its pods. `since` has the time from which each type of condition
    has had its status, `until` that by which the rollout has ended or counts as stuck.
    """
    by_type = {condition.type: condition for condition in conditions}
    serves = by_type["Available"].status == "True"
    worst = next(_by_weight(by_type), None)
    if worst is None and serves:
        return f"Serving. {FINE}"
    worst = worst or by_type["Ready"]
    is_short = _SHORTAGES.get(worst.type) == worst.status
    if not serves and is_short:
        how = "Not serving yet, and not with all it uses"
    elif not serves:
        how = "Not serving"
    elif is_short:
        how = "Serving, but not with all it uses"
    else:
        how = "Serving, but"
    message = _PREAMBLE.sub("", worst.message).replace(" .spec.template.", " spec.podTemplate.")
    wrong = message if worst.type in _LISTS else _first_sentence(message)
    remedy = _remedy(worst, until).format(agent=agent, until=until, pods=pods)
    return f"{how} since {since[worst.type]}: {_bounded(wrong)} {remedy}"


def _by_weight(by_type: Mapping[ConditionType, Condition]) -> Iterator[Condition]:
    """Return the conditions that report a problem or something unfinished, gravest first."""
    ready, progressing = by_type["Ready"], by_type["Progressing"]
    if by_type["Accepted"].status == "False":
        yield by_type["Accepted"]
    obstacle = by_type.get("Stalled", progressing)
    if obstacle.type == "Stalled" and obstacle.reason != "Stuck":  # of which Ready says why
        yield obstacle
    elif progressing.reason in GOES_ON_BY_ITSELF:
        yield progressing
    if ready.status == "False" and ready.reason != "RollingOut":
        yield ready
    for kind, bad in _SHORTAGES.items():
        if kind in by_type and by_type[kind].status == bad:
            yield by_type[kind]
    if "Drifted" in by_type:
        yield by_type["Drifted"]
    if ready.status == "False":  # while it serves, Ready says how many pods can take work
        is_served = by_type["Available"].status == "True"
        yield progressing if is_served and progressing.reason == "RollingOut" else ready
    if by_type["Available"].status == "True":  # pods that do not serve have said so
        yield from (condition for condition in by_type.values() if condition.status == "Unknown")


def _remedy(worst: Condition, until: str | None) -> str:
    default = _DEFAULTS.get(worst.type, _WAIT if until else _WAIT_A_MINUTE)
    return _REMEDIES.get(worst.reason, default)


def _first_sentence(message: str) -> str:
    """Return what is wrong without what follows: advice of its own, or more of the API's words."""
    return _END.split(message.strip(), maxsplit=1)[0]


def _bounded(text: str) -> str:
    """Return a text as one line that is not too long and ends as a sentence does."""
    line = " ".join(text.split())
    if len(line) > _MAX_WRONG:
        line = f"{line[:_MAX_WRONG].rstrip()} …"
    return line if line.endswith((".", "…", "!", "?")) else f"{line}."


_END: Final = re.compile(r"; (?![^(]*\))|(?<=[^.])\. ")
"""Ends what is wrong: a full stop, or a semicolon that is not in parentheses."""
_PREAMBLE: Final = re.compile(
    r"failed to (?:create typed patch object|convert new object) \([^)]*\)(?: to proper version)?: "
    r"(?:unable to convert unstructured object to [^:]*: )?"
)
"""With which the API server begins what it finds malformed; the message of the condition has it."""
_LISTS: Final = {"Degraded", "ToolsDrifted"}
"""Conditions whose message is a list of all that is missing, with semicolons between."""
_DEFAULTS: Final[Mapping[ConditionType, str]] = {
    "Accepted": "Correct the Agent's manifest and apply it; `diptych check FILE` names the field.",
    "Stalled": "Mend what the message names; it is tried again by itself.",
}
"""What to do about a condition whose reason has no remedy of its own."""
_SHORTAGES: Final[Mapping[ConditionType, str]] = {
    "ResolvedRefs": "False",
    "Degraded": "True",
    "ToolsDrifted": "True",
}
"""Conditions with which an Agent serves, and lacks something; the status that says so."""
