"""What keeps a pod from becoming ready, as a message for the Agent's owner. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from diptych_operator.desired.additions import added_fields
from diptych_operator.desired.deployment import CONTAINER
from diptych_operator.resources.kinds import Object
from diptych_operator.resources.labels import INSTANCE
from diptych_operator.status.problem import Problem

_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CREATE_REASONS = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
}
_CONFIG_ERROR = 2  # the pod's exit code for a manifest that it cannot use
_STARTED_TOO_LARGE = "init was OOM-killed"  # runc's words, with the reason StartError
_MAX_OUTPUT = 400  # characters of a container's last output


def pod_problem(
    pod: Object, deployment: Object | None = None, own: Collection[str] = ()
) -> Problem | None:
    """Say what keeps a pod from becoming ready; None for a pod that is ready or starting.

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
    for container in _containers(status):
        name = container.get("name", CONTAINER)
        shown = "The container"
        if name != CONTAINER:
            shown += f" {name} {_origin(name, deployment, own)}"
        if problem := _container_problem(container, shown, _logs(pod, name)):
            return problem
    return None


def pod_address(pod: Object) -> str | None:
    """Give the IP address of a running pod; None for any other pod."""
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") != "Running":
        return None
    address: str | None = status.get("podIP")
    return address


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _origin(name: str, deployment: Object | None, own: Collection[str]) -> str:
    """Say whose a container is that is not the agent's."""
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
        is_agents = container.get("name", CONTAINER) == CONTAINER
        field = "spec.container.image" if is_agents else "it there"
        owner = "" if is_agents else f" of {shown[4:]}"
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
    is_agents = container.get("name", CONTAINER) == CONTAINER
    if last_exit.get("reason") == "OOMKilled" or _STARTED_TOO_LARGE in str(
        last_exit.get("message")
    ):
        limit = f"{'spec.container.' if is_agents else 'its '}resources.limits.memory"
        return Problem("OutOfMemory", f"{shown} needs more memory than its limit; raise {limit}.")
    code, output = last_exit.get("exitCode"), _last_words(last_exit.get("message"))
    if (
        is_agents and code == _CONFIG_ERROR and output
    ):  # written for users; other output may hold secrets
        return Problem("ConfigError", f"The agent does not start: {output}")
    return Problem("CrashLooping", f"{shown} ends with exit code {code}: `{logs}` says why.")


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions", ()) if c["type"] == name), {})


def _last_words(text: object) -> str:
    """Give the end of a text, on one line."""
    return " ".join(str(text or "").split())[-_MAX_OUTPUT:]
