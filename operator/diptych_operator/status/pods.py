"""Reads a live Deployment and its pods: why pods are missing or not ready. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from diptych_operator.desired.deployment import CONTAINER
from diptych_operator.desired.drift import added_fields
from diptych_operator.desired.mcp_server import CONTAINER as SERVER
from diptych_operator.desired.model_api import MODEL, PROXY
from diptych_operator.resources.kinds import Object
from diptych_operator.resources.labels import INSTANCE
from diptych_operator.status.condition import Problem

NUDGE_SECONDS = 30
"""Between two nudges of a Deployment whose pods are refused: its controller alone waits ever longer
before it asks again, up to 16 minutes."""


def refusal(deployment: Object | None) -> Problem | None:
    """Return why the cluster makes no pods: a quota, a policy."""
    failure = deployment_condition(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    seen = failure.get("lastUpdateTime") or failure.get("lastTransitionTime")
    when = f" since {seen}, and is asked again every {NUDGE_SECONDS} s" if seen else ""
    message = f"The cluster refuses the pods{when}: {failure.get('message', '')}"
    return Problem("PodsRefused", message)


def rollout_deadline(deployment: Object | None) -> str | None:
    """Return the time after which the rollout counts as stuck; None if it has not begun."""
    progress = deployment_condition(deployment, "Progressing").get("lastUpdateTime")
    if progress is None:
        return None
    seconds = ((deployment or {}).get("spec") or {}).get("progressDeadlineSeconds", 600)
    until = datetime.fromisoformat(progress) + timedelta(seconds=seconds)
    return until.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_paused(deployment: Object | None) -> bool:
    """Whether somebody has paused its rollouts."""
    return bool(((deployment or {}).get("spec") or {}).get("paused"))


def deployment_condition(deployment: Object | None, name: str) -> Mapping[str, Any]:
    """Return a condition of a Deployment; empty if it has none."""
    live = ((deployment or {}).get("status") or {}).get("conditions", ())
    return next((condition for condition in live if condition["type"] == name), {})


def wanted_replicas(deployment: Object | None) -> int:
    """Return how many pods are wanted."""
    return int(((deployment or {}).get("spec") or {}).get("replicas", 1))


def count_of(deployment: Object | None, field: str) -> int:
    """Return one of the counts of a Deployment's status; 0 if it has none."""
    return int(((deployment or {}).get("status") or {}).get(field) or 0)


def agent_image(deployment: Object | None) -> str:
    """Return the image of the agent's container; "" if it is not known."""
    template = ((deployment or {}).get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers", ())
    return next((str(one["image"]) for one in containers if one["name"] == CONTAINER), "")


_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_OWN_CONTAINERS = {
    CONTAINER: ("spec.container.image", "spec.container."),
    PROXY: ("the image of the operator's pods", "spec.proxy."),
    MODEL: ("spec.hosted.image", "spec.hosted."),
    SERVER: ("spec.source.containerImage.ref", "spec.runtime."),
}
"""Our own containers: the manifest's field with the image, and the one around the resources."""
_CREATE_REASONS = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
}
_CONFIG_ERROR = 2  # the pod's exit code for a manifest that it cannot use
_STARTED_TOO_LARGE = "init was OOM-killed"  # runc's words, with the reason StartError
_MAX_OUTPUT = 400  # characters of a container's last output
HELD_UP_SECONDS = 10.0
"""After which a pod that has a node, and neither runs nor says why, is asked about."""
_VOLUME_REASONS = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
_SUMMARY = "Unable to attach or mount volumes"  # an Event of the kubelet that names no cause


def pod_problem(
    pod: Object, deployment: Object | None = None, own: Collection[str] = ()
) -> Problem | None:
    """Return what keeps a pod from becoming ready; None for a pod that is ready or starting.

    Of its containers, `own` are those of `spec.podTemplate`, others are of its `deployment`.
    """
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") == "Succeeded":
        return None
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Problem("Unschedulable", f"No node takes the pod: {scheduled.get('message', '')}")
    if status.get("phase") == "Failed":
        return Problem("PodFailed", f"The pod failed: {_last_words(status.get('message'))}")
    if problem := _node_problem(pod):
        return problem
    for container in _containers(status):
        name = container.get("name", CONTAINER)
        shown = "The container"
        if name not in _OWN_CONTAINERS:
            shown += f" {name} {_origin(name, deployment, own)}"
        if problem := _container_problem(container, shown, _logs(pod, name)):
            return problem
    return None


def is_held_up(pod: Object, now: float) -> bool:
    """Whether a pod that has a node does not start, and its status does not say why.

    `now` is a Unix time.
    """
    status = pod.get("status") or {}
    if status.get("phase") != "Pending" or "deletionTimestamp" in pod["metadata"]:
        return False
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") != "True" or pod_problem(pod) is not None:
        return False
    since = datetime.fromisoformat(scheduled["lastTransitionTime"]).timestamp()
    return now - since > HELD_UP_SECONDS


def start_problem(pod: Object, warnings: Sequence[Object]) -> Problem | None:
    """Return what the newest Warning Event says of a pod that does not start."""
    if not warnings:
        return None
    event = max(warnings, key=_weight)
    name, made = pod["metadata"]["name"], pod["metadata"].get("creationTimestamp")
    message = f"Pod {name}, made {made}, does not start: {_last_words(event.get('note'))}"
    is_volume = event.get("reason") in _VOLUME_REASONS
    return Problem("VolumeNotMounted" if is_volume else "PodNotStarted", message)


def _weight(event: Object) -> tuple[bool, str]:
    seen = (event.get("series") or {}).get("lastObservedTime")
    times = (seen, event.get("deprecatedLastTimestamp"), event.get("eventTime"))
    return not str(event.get("note")).startswith(_SUMMARY), next(filter(None, times), "")


def _node_problem(pod: Object) -> Problem | None:
    """Return the problem of a pod whose node is silent.

    The node controller then makes the pod's Ready False, and leaves the kubelet's last
    ContainersReady as it was; the kubelet itself never says one without the other, but for a
    readiness gate, of which it gives the reason.
    """
    status = pod.get("status") or {}
    ready = _condition(status, "Ready")
    was_ready = _condition(status, "ContainersReady").get("status") == "True"
    if ready.get("status") != "False" or ready.get("reason") or not was_ready:
        return None
    node, since = (pod.get("spec") or {}).get("nodeName"), ready.get("lastTransitionTime")
    return Problem("NodeSilent", f"Its node {node} does not report since {since}.")


def pod_address(pod: Object) -> str | None:
    """Return the IP address of a running pod; None for any other pod."""
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") != "Running":
        return None
    address: str | None = status.get("podIP")
    return address


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _origin(name: str, deployment: Object | None, own: Collection[str]) -> str:
    """Return who added a container that is not the agent's."""
    if deployment is None or name in own:
        return "of spec.podTemplate"
    if manager := added_fields(deployment).get(f"spec.containers[{name}]"):
        return f"which {manager} has added to the Deployment"
    template = (deployment["spec"].get("template") or {}).get("spec") or {}
    containers = (*template.get("initContainers", ()), *template.get("containers", ()))
    if any(one["name"] == name for one in containers):
        return "of the platform (agents.podTemplate of the chart)"
    return "which a webhook of the cluster injects and the Agent does not name"


def _logs(pod: Object, container: str) -> str:
    metadata = pod["metadata"]
    agent, namespace = metadata.get("labels", {}).get(INSTANCE, ""), metadata.get("namespace")
    where = f" -n {namespace}" if namespace else ""
    return f"kubectl logs --previous{where} -l {INSTANCE}={agent} -c {container}"


def _container_problem(container: Mapping[str, Any], shown: str, logs: str) -> Problem | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), _last_words(waiting.get("message"))
    if reason in _IMAGE_REASONS:
        own = _OWN_CONTAINERS.get(container.get("name", CONTAINER))
        field = own[0] if own else "it there"
        owner = "" if own else f" of {shown[4:]}"
        return Problem(
            "ImagePullFailed",
            f"The image {container.get('image', '')}{owner} cannot be pulled; correct {field}, "
            f"or make the image available. {message.rpartition('ErrImagePull: ')[2]}".rstrip(),
        )
    if reason in _CREATE_REASONS:
        image = f" (image {container['image']})" if "executable file not found" in message else ""
        return Problem("ContainerNotMade", f"{shown}{image} cannot be made: {message}")
    return _crash(container, shown, logs)


def _crash(container: Mapping[str, Any], shown: str, logs: str) -> Problem | None:
    """Report a container that has exited with an error, even if it runs again now."""
    exits = [(container.get(state) or {}).get("terminated") for state in ("state", "lastState")]
    last_exit = next(filter(None, exits), None)
    if container.get("ready") or last_exit is None or last_exit.get("exitCode") == 0:
        return None
    own = _OWN_CONTAINERS.get(container.get("name", CONTAINER))
    if last_exit.get("reason") == "OOMKilled" or _STARTED_TOO_LARGE in str(
        last_exit.get("message")
    ):
        limit = f"{own[1] if own else 'its '}resources.limits.memory"
        return Problem("OutOfMemory", f"{shown} needs more memory than its limit; raise {limit}.")
    code, output = last_exit.get("exitCode"), _last_words(last_exit.get("message"))
    is_agents = container.get("name", CONTAINER) == CONTAINER
    if (
        is_agents and code == _CONFIG_ERROR and output
    ):  # written for users; other output may hold secrets
        return Problem("ConfigError", f"The agent does not start: {output}")
    return Problem("CrashLooping", f"{shown} ends with exit code {code}: `{logs}` says why.")


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions", ()) if c["type"] == name), {})


def _last_words(text: object) -> str:
    """Return the end of a text, on one line."""
    return " ".join(str(text or "").split())[-_MAX_OUTPUT:]
