"""A live Deployment's rollout: its progress, its pods' ConfigMaps, and its cause. Pure.

A change of something shared (the platform's settings, a ModelAPI, an MCPServer) reaches its Agents
in waves; an Agent's own edit is only paced. The mark that tells them apart stands on the
Deployment, so that it outlives the operator's process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import orjson

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
"""The annotation with the mark, as JSON."""

PLATFORM: Final = "the platform's settings"
"""The shared thing that all Agents have."""


class Cause(StrEnum):
    """The cause of the newest change of an Agent's pods."""

    START = "start"
    """The Agent was made, or its pods did not work before."""
    EDIT = "edit"
    """The Agent itself was changed."""
    SHARED = "shared"
    """Something that it shares with others was changed."""


@dataclass(frozen=True, slots=True)
class RolloutMark:
    """The state that was applied last: the Agent's generation, and the pod template's digest.

    `shared` has the revision of each shared thing that went into it. `was_healthy` says that the
    Agent had all that it uses before.
    """

    generation: int
    template: str
    cause: Cause
    shared: Mapping[str, str]
    was_healthy: bool

    def __str__(self) -> str:
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS).decode()


def mark_of(deployment: Object | None) -> RolloutMark | None:
    """Read a Deployment's mark; None if it is missing or invalid."""
    annotations = ((deployment or {}).get("metadata") or {}).get("annotations") or {}
    text = annotations.get(ROLLOUT_MARK)
    return _parsed(text) if text else None


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> RolloutMark | None:
    try:
        found = orjson.loads(text)
        return RolloutMark(**{**found, "cause": Cause(found["cause"])})
    except (LookupError, TypeError, ValueError):
        return None


def rollout_mark(
    agent: Agent, template: Mapping[str, Any], live: Object | None, shared: Mapping[str, str]
) -> RolloutMark:
    """Return the mark of the Deployment that an Agent should have; `live` is the one it has."""
    was, new = mark_of(live), digest(template)
    if was is not None and was.template == new:
        return replace(was, generation=agent.generation)
    is_edit = was is not None and was.generation != agent.generation
    if live is None or (was is None and _has_template(live, template)):
        cause = Cause.START
    elif is_rolled_out(live):
        cause = Cause.EDIT if is_edit else Cause.SHARED
    elif was is None:
        cause = Cause.START
    else:  # it goes on; an edit takes an Agent out of its wave
        cause = Cause.EDIT if is_edit and was.cause is Cause.SHARED else was.cause
    is_healthy = ("Degraded", "True") not in _statuses(agent)
    return RolloutMark(agent.generation, new, cause, shared, is_healthy)


def begins_rollout(desired: Object, live: Object | None) -> Cause | None:
    """Return the cause for which applying a Deployment replaces pods that work, if it does."""
    mark, was = mark_of(desired), mark_of(live)
    is_same = mark is None or (was is not None and was.template == mark.template)
    return None if mark is None or is_same or not is_rolled_out(live) else mark.cause


def changed_things(desired: Object, live: Object | None) -> Mapping[str, str]:
    """Return the shared things, with their revisions, of which the live pods have others."""
    mark, was = mark_of(desired), mark_of(live)
    before = was.shared if was else {}
    after = mark.shared if mark else {}
    return {thing: revision for thing, revision in after.items() if before.get(thing) != revision}


def is_rolling(deployment: Object) -> bool:
    """Whether working pods are being replaced; a paused rollout does not count."""
    mark = mark_of(deployment)
    if mark is None or mark.cause is Cause.START or is_rolled_out(deployment):
        return False
    is_paused = bool((deployment.get("spec") or {}).get("paused"))
    return not is_paused and "deletionTimestamp" not in deployment["metadata"]


def _statuses(agent: Agent) -> set[tuple[str, str]]:
    return {(c["type"], c["status"]) for c in agent.status.get("conditions", ())}


def _has_template(live: Object | None, template: Mapping[str, Any]) -> bool:
    return contains(((live or {}).get("spec") or {}).get("template"), template)
