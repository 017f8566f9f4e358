"""How far the rollout of a live Deployment is, and what its pods use. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from diptych_operator.desired.deployment import VOLUME
from diptych_operator.resources.kinds import Object

_REVISION = "pod-template-hash"
"""The label by which a Deployment tells the pods of its revisions apart."""


def mounted_config_map(deployment: Object | None) -> str | None:
    """Name the ConfigMap that a Deployment's newest pods mount."""
    pod = _at(deployment or {}, "spec", "template", "spec")
    for volume in pod.get("volumes", ()):
        if volume.get("name") == VOLUME:
            sources: list[Object] = _at(volume, "projected").get("sources") or [{}]
            name: str | None = _at(sources[0], "configMap").get("name")
            return name
    return None


def mounts_config_map(deployment: Object | None, name: str) -> bool:
    """Say whether a Deployment's newest pods mount a ConfigMap."""
    pod = _at(deployment or {}, "spec", "template", "spec")
    sources = (
        source
        for volume in pod.get("volumes", ())
        if volume.get("name") == VOLUME
        for source in _at(volume, "projected").get("sources") or ()
    )
    return any(_at(source, "configMap").get("name") == name for source in sources)


def is_rolled_out(deployment: Object | None) -> bool:
    """Say whether all pods are of the newest revision and available."""
    if deployment is None:
        return False
    metadata, spec, status = (deployment.get(k) or {} for k in ("metadata", "spec", "status"))
    wanted = spec.get("replicas", 1)
    return bool(
        status.get("observedGeneration", 0) >= metadata.get("generation", 0)
        and status.get("updatedReplicas", 0) == wanted
        and status.get("replicas", 0) == wanted
        and status.get("availableReplicas", 0) >= wanted
    )


def is_replacing_pods(deployment: Object | None, pods: Iterable[Object]) -> bool:
    """Say whether pods of a former revision may still run, be it that they only drain.

    A Deployment does not count pods that are being deleted, and their runs go on until the grace
    period is over. With no other pod left, nothing tells of which revision these are.
    """
    if not is_rolled_out(deployment):
        return True
    running = [
        pod["metadata"]
        for pod in pods
        if not has_ended(pod) and _REVISION in _at(pod, "metadata", "labels")
    ]
    revisions = {metadata["labels"][_REVISION] for metadata in running}
    are_all_draining = all("deletionTimestamp" in metadata for metadata in running)
    return len(revisions) > 1 or (bool(running) and are_all_draining)


def has_ended(pod: Object) -> bool:
    """Say whether a pod runs nothing any more; one that is being deleted may still run."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _at(content: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        content = content.get(name) or {}
    return content
