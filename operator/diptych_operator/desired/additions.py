"""Fields that others have added to the pod template of a live Deployment. Pure.

Server-side apply leaves them alone, and they change what the pods are all the same: `kubectl set
env deployment NAME LD_PRELOAD=…`. Who has set what is in `metadata.managedFields`:
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diptych_operator.desired.locked_fields import LockedField, locked_values
from diptych_operator.resources.kinds import FIELD_MANAGER, OVERWRITE_MANAGER, Object

ADDED = "diptychAdded"
"""Where a cached Deployment's metadata has the added paths, in place of its `managedFields`."""
_OWN = {FIELD_MANAGER, OVERWRITE_MANAGER}
_RESTARTED = "metadata.annotations.kubectl.kubernetes.io/restartedAt"


def additions(managed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what others add to the pod template of ours: each path, and the manager that did it.

    `kubectl rollout restart` adds one that means nothing but new pods; it is left out.
    """
    own = [_template(one) for one in managed if one.get("manager") in _OWN]
    others = [one for one in managed if one.get("manager") not in _OWN]
    found = {path: str(o.get("manager")) for o in others for path in _added(_template(o), own)}
    return {path: manager for path, manager in found.items() if path != _RESTARTED}


def added_fields(deployment: Object | None) -> dict[str, str]:
    """Return the `additions` to a cached Deployment."""
    found: dict[str, str] = (deployment or {}).get("metadata", {}).get(ADDED, {})
    return found


def locked_additions(deployment: Object, locked: Sequence[LockedField]) -> list[str]:
    """Return the added paths that a lock covers."""
    added, template = added_fields(deployment), deployment["spec"]["template"]
    held = {_plain(path) for one in locked for path in locked_values(template, one)}
    return [path for path in added if any(_overlap(_plain(path), other) for other in held)]


def _template(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    tree: Mapping[str, Any] = (entry.get("fieldsV1") or {}).get("f:spec") or {}
    return tree.get("f:template") or {}


def _added(
    tree: Mapping[str, Any], own: Sequence[Mapping[str, Any]], path: str = ""
) -> Iterator[str]:
    """Yield what no tree of `own` has: whole entries of lists, else single fields."""
    for step, inner in tree.items():
        if step == ".":
            continue
        ours = [one[step] for one in own if step in one]
        here = f"{path}{_shown(step)}".removeprefix(".")
        if ours or (step.startswith("f:") and inner.keys() - {"."}):
            yield from _added(inner, ours, here)
        else:
            yield here


def _shown(step: str) -> str:
    """Write a step as in a message: `f:env` as a field, `k:{"name":"HOME"}` as an entry."""
    kind, _, text = step.partition(":")
    return f"[{next(iter(json.loads(text).values()))}]" if kind == "k" else f".{text}"


def _plain(path: str) -> str:
    return path.replace("[", ".").replace("]", "")


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
