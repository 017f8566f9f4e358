"""What keeps a pod from taking work, in words for the Agent's owner. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diptych_operator.resources.kinds import INSTANCE, Object

_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CONFIG_REASONS = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
}
_CONFIG_ERROR = 2  # the pod's exit code for a manifest that it cannot use
_MAX_WORDS = 400  # characters of what a container said last


@dataclass(frozen=True, slots=True)
class PodTrouble:
    """Why a pod takes no work: a reason in one word, and what to do about it."""

    reason: str
    sentence: str


def pod_trouble(pod: Object) -> PodTrouble | None:
    """Say what keeps a pod from taking work; None if nothing does, or it has only just begun."""
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") == "Succeeded":
        return None
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return PodTrouble("Unschedulable", f"No node takes the pod: {scheduled.get('message', '')}")
    if status.get("phase") == "Failed":
        return PodTrouble("PodFailed", f"The pod failed: {_words(status.get('message'))}")
    agent = pod["metadata"].get("labels", {}).get(INSTANCE, "")
    found = (_container_trouble(container, agent) for container in _containers(status))
    return next(filter(None, found), None)


def pod_address(pod: Object) -> str | None:
    """Give the address at which a pod can be asked; None if it does not run."""
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") != "Running":
        return None
    address: str | None = status.get("podIP")
    return address


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _container_trouble(container: Mapping[str, Any], agent: str) -> PodTrouble | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, said = waiting.get("reason", ""), _words(waiting.get("message"))
    if reason in _IMAGE_REASONS:
        return PodTrouble(
            "ImagePullFailed",
            f"The image {container.get('image', '')} cannot be pulled; correct "
            "spec.container.image, or make the image available. "
            f"{said.rpartition('ErrImagePull: ')[2]}".rstrip(),
        )
    if reason in _CONFIG_REASONS:
        return PodTrouble("ContainerNotMade", f"The container cannot be made: {said}")
    return _crash(container, agent)


def _crash(container: Mapping[str, Any], agent: str) -> PodTrouble | None:
    """Tell of a container that has ended with an error, whether or not it runs once more now."""
    ends = [(container.get(state) or {}).get("terminated") for state in ("state", "lastState")]
    end = next(filter(None, ends), None)
    if container.get("ready") or end is None or end.get("exitCode") == 0:
        return None
    if end.get("reason") == "OOMKilled":
        sentence = (
            "The container needs more memory than its limit; raise "
            "spec.container.resources.limits.memory."
        )
        return PodTrouble("OutOfMemory", sentence)
    code, said = end.get("exitCode"), _words(end.get("message"))
    if code == _CONFIG_ERROR and said:  # made for strangers; other last words may not be
        return PodTrouble("ConfigError", f"The agent does not start: {said}")
    sentence = (
        f"The container ends with exit code {code}; kubectl logs --previous "
        f"-l {INSTANCE}={agent} says why."
    )
    return PodTrouble("CrashLooping", sentence)


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions", ()) if c["type"] == name), {})


def _words(text: object) -> str:
    """Give the end of what was said, on one line."""
    return " ".join(str(text or "").split())[-_MAX_WORDS:]
