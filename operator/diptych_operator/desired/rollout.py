"""A live Deployment's rollout: its progress, its pods' ConfigMaps, and its cause. Pure.

Changes of the platform wait for each other, an Agent's own do not. The mark that tells them apart
stands on the Deployment, so that it outlives the operator's process.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from diptych_operator.desired.deployment import VOLUME
from diptych_operator.desired.drift import contains, digest
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Object

_REVISION = "pod-template-hash"
"""The label by which a Deployment tells the pods of its revisions apart."""


def mounted_config_maps(deployment: Object | None) -> tuple[str | None, ...]:
    """Name the ConfigMaps that a Deployment's newest pods mount; the manifest's is the first."""
    pod = _at(deployment or {}, "spec", "template", "spec")
    return tuple(
        _at(source, "configMap").get("name")
        for volume in pod.get("volumes", ())
        if volume.get("name") == VOLUME
        for source in _at(volume, "projected").get("sources") or ()
    )


def is_rolled_out(deployment: Object | None) -> bool:
    """Whether all pods are of the newest revision and available."""
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
    """Whether pods of a former revision may still run, including draining ones.

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
    """Whether a pod runs nothing any more; one that is being deleted may still run."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _at(content: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        content = content.get(name) or {}
    return content


ROLLOUT_MARK: Final = "diptych.dev/rollout"
"""The annotation: `generation=3 template=0123456789abcdef cause=platform`."""

_FORM = re.compile(r"generation=(\d+) template=([0-9a-f]+) cause=(manifest|platform)")


class Cause(Enum):
    """The cause of the newest change of an Agent's pods."""

    MANIFEST = "manifest"
    """The Agent itself: it was made or changed. Also what mends pods that do not work."""
    PLATFORM = "platform"
    """What all Agents share: the chart's values, the image, or what the Agent refers to."""


@dataclass(frozen=True, slots=True)
class RolloutMark:
    """The generation of the Agent and the digest of the pod template that were applied last."""

    generation: int
    template: str
    cause: Cause

    def __str__(self) -> str:
        return f"generation={self.generation} template={self.template} cause={self.cause.value}"


def mark_of(deployment: Object | None) -> RolloutMark | None:
    """Read a Deployment's mark; None if it is missing or invalid."""
    annotations = ((deployment or {}).get("metadata") or {}).get("annotations") or {}
    found = _FORM.fullmatch(annotations.get(ROLLOUT_MARK, ""))
    return RolloutMark(int(found[1]), found[2], Cause(found[3])) if found else None


def rollout_mark(agent: Agent, template: Mapping[str, Any], live: Object | None) -> RolloutMark:
    """Return the mark of the Deployment that an Agent should have; `live` is the one it has."""
    was, new = mark_of(live), digest(template)
    if was is not None and was.template == new:
        return RolloutMark(agent.generation, new, was.cause)
    is_own = live is None or (was is not None and was.generation != agent.generation)
    if is_own or (was is None and _has_template(live, template)):
        return RolloutMark(agent.generation, new, Cause.MANIFEST)
    if is_rolled_out(live):
        return RolloutMark(agent.generation, new, Cause.PLATFORM)
    return RolloutMark(agent.generation, new, was.cause if was else Cause.MANIFEST)


def begins_platform_rollout(desired: Object, live: Object | None) -> bool:
    """Whether applying a Deployment replaces pods that work, because of the platform."""
    mark, was = mark_of(desired), mark_of(live)
    is_new = mark is not None and (was is None or was.template != mark.template)
    is_platforms = mark is not None and mark.cause is Cause.PLATFORM
    return is_new and is_platforms and is_rolled_out(live)


def is_in_platform_rollout(deployment: Object) -> bool:
    """Whether a platform rollout is in progress; a paused rollout does not count."""
    mark = mark_of(deployment)
    if mark is None or mark.cause is not Cause.PLATFORM or is_rolled_out(deployment):
        return False
    is_paused = bool((deployment.get("spec") or {}).get("paused"))
    return not is_paused and "deletionTimestamp" not in deployment["metadata"]


def _has_template(live: Object | None, template: Mapping[str, Any]) -> bool:
    return contains(((live or {}).get("spec") or {}).get("template"), template)
