"""When pods first started, failed, got ready, and ended: what a status cannot tell before.

Each of it counts once for each pod, so that one which starts again and again defers nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

_BEGINNING = {"ContainerCreating", "PodInitializing"}


class PodChanges:
    """The changes of all pods that `note` has been shown, by whose they are."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, str], float] = {}
        self._is_begun = False
        self._there: set[tuple[str, str]] = set()

    def note(self, pods: Sequence[dict[str, Any]], at: float) -> None:
        """Note what is new since the last look; the first look says what was so before."""
        there = {(_whose(pod), pod["metadata"]["uid"]) for pod in pods}
        seen = {(_whose(pod), pod["metadata"]["uid"], what) for pod in pods for what in _of(pod)}
        seen |= {(*gone, "gone") for gone in self._there - there}
        self._there |= there
        for change in seen:
            self._first.setdefault(change, at if self._is_begun else float("-inf"))
        self._is_begun = True

    def changes(self, *names: str) -> list[float]:
        """Give the times of all changes of pods of Agents and servers of these names."""
        return [at for (whose, _, _), at in tuple(self._first.items()) if whose in names]


def _whose(pod: dict[str, Any]) -> str:
    labels = pod["metadata"].get("labels", {})
    return str(labels.get("app.kubernetes.io/instance") or labels.get("app", ""))


def _of(pod: dict[str, Any]) -> Iterator[str]:
    """Name what has happened to a pod up to now."""
    yield "made"
    if "deletionTimestamp" in pod["metadata"]:
        yield "ends"
    status = pod["status"]
    conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
    yield f"ready {conditions.get('Ready', 'False')}"
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(field, ()):
            state = container.get("state", {})
            if "running" in state:
                yield "started"
            is_failing = state.get("waiting", {}).get("reason", "ContainerCreating")
            if is_failing not in _BEGINNING or "terminated" in state:
                yield "failing"
