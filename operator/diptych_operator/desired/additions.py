"""Fields that others have added to the pod template of a live Deployment. Pure.

Server-side apply leaves them alone, and drift is a field of ours that was edited. They change what
the pods are all the same: `kubectl set env deployment NAME LD_PRELOAD=…`.
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diptych_operator.desired.locked_fields import LockedField, locked_values
from diptych_operator.resources.kinds import FIELD_MANAGER, OVERWRITE_MANAGER, Object

ADDED = "diptychAdded"
"""Of an entry of `managedFields`: the paths that its manager added, instead of its `fieldsV1`."""

_RESTARTED = "metadata.annotations[kubectl.kubernetes.io/restartedAt]"
"""What `kubectl rollout restart` adds: new pods of the same template."""
_MAPPINGS = {
    *("annotations", "labels", "matchLabels", "nodeSelector", "limits", "requests", "overhead"),
}
"""Fields whose keys are names, which a path has in brackets."""


def additions_by_manager(managed: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the paths that each entry of `managedFields` adds to the pod template of ours."""
    trees = [_template(entry) for entry in managed]
    own = [tree for entry, tree in zip(managed, trees, strict=True) if _is_own(entry)]
    return [
        () if _is_own(entry) else tuple(path for path in _added(tree, own) if path != _RESTARTED)
        for entry, tree in zip(managed, trees, strict=True)
    ]


def added_fields(deployment: Object | None) -> dict[str, str]:
    """Return the added paths of a cached Deployment, each with the manager that added it."""
    managed = (deployment or {}).get("metadata", {}).get("managedFields", ())
    return {path: str(one.get("manager")) for one in managed for path in one.get(ADDED, ())}


def locked_additions(deployment: Object, locked: Sequence[LockedField]) -> list[str]:
    """Return the added paths that a lock covers."""
    added = added_fields(deployment)
    if not added:
        return []
    template = deployment["spec"]["template"]
    held = [path for one in locked for path in locked_values(template, one)]
    return sorted(path for path in added if any(_overlap(path, other) for other in held))


def _is_own(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") in {FIELD_MANAGER, OVERWRITE_MANAGER}


def _template(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    tree: Mapping[str, Any] = entry.get("fieldsV1") or {}
    for name in ("f:spec", "f:template"):
        tree = tree.get(name) or {}
    return tree


def _added(
    tree: Mapping[str, Any], own: Sequence[Mapping[str, Any]], path: str = "", field: str = ""
) -> Iterator[str]:
    """Yield what none of `own` has: whole entries of lists, else single fields."""
    for key, inner in tree.items():
        if key == ".":
            continue
        name, is_entry = _name(key)
        is_named = is_entry or field in _MAPPINGS
        here = f"{path}[{name}]" if is_named else f"{path}.{name}" if path else name
        ours = [one[key] for one in own if key in one]
        if not ours and (is_entry or not inner.keys() - {"."}):
            yield here
        else:
            yield from _added(inner, ours, here, name)


def _name(key: str) -> tuple[str, bool]:
    """Read a step of `fieldsV1`: `f:env`, or an entry of a list: `k:{"name":"HOME"}`, `v:…`."""
    kind, _, text = key.partition(":")
    if kind == "f":
        return text, False
    value = json.loads(text) if kind in {"k", "v"} else text
    return str(next(iter(value.values())) if isinstance(value, dict) else value), True


def _overlap(one: str, other: str) -> bool:
    short, long = sorted((_plain(one), _plain(other)), key=len)
    return long == short or long.startswith(f"{short}.")


def _plain(path: str) -> str:
    return path.replace("[", ".").replace("]", "")
