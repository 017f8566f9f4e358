"""Drift: whether a live object still has the applied values, and others' additions. Pure.

The digest on the object tells whether the desired state has changed since (fields may have to be
removed); comparing values tells whether somebody has edited what was applied. What the API server
or others add is no drift, except in a NetworkPolicy or PodDisruptionBudget, where one more rule
changes what the others mean.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from diptych_operator.desired.locked_fields import LockedField, locked_values
from diptych_operator.desired.strategic_merge import MERGE_KEYS
from diptych_operator.resources.kinds import FIELD_MANAGER, OVERWRITE_MANAGER, Object

_EXACT = {("NetworkPolicy", "spec"), ("PodDisruptionBudget", "spec")}
_ATOMIC = {"selector", "matchLabels", "nodeSelector"}  # as in server-side apply


def digest(content: Mapping[str, Any]) -> str:
    """Return a short digest of an object; the order of its fields does not matter."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def has_drifted(live: Object, desired: Object) -> bool:
    """Whether an object must be applied again; `desired` carries its digest."""
    for name, value in desired.items():
        if name in {"apiVersion", "kind"}:
            continue
        is_same = _equals if (desired["kind"], name) in _EXACT else contains
        if not is_same(live.get(name), value):
            return True
    return False


def contains(live: object, desired: object, field: str = "") -> bool:
    """Whether a live value contains every field of the desired value."""
    match desired:
        case dict() if field in _ATOMIC:
            return live == desired
        case dict():
            return isinstance(live, dict) and all(
                contains(live.get(name), value, name) for name, value in desired.items()
            )
        case list() if not desired:
            return not live
        case list():
            return isinstance(live, list) and _contains_entries(live, desired, field)
        case "" | None:
            return not live
        case _:
            return bool(live == desired)


def _contains_entries(live: list[Any], desired: list[Any], field: str) -> bool:
    if any(_merge_key(field, entry) is None for entry in desired):
        return len(live) == len(desired) and all(
            contains(one, other, field) for one, other in zip(live, desired, strict=True)
        )
    by_key = {_merge_key(field, entry): entry for entry in live}
    return all(contains(by_key.get(_merge_key(field, entry)), entry) for entry in desired)


def _merge_key(field: str, entry: object) -> object:
    """Return what identifies an entry of a keyed list; None if the list is not keyed."""
    if not isinstance(entry, dict):
        return None
    if field == "ports":  # of a container or of a Service
        number = entry.get("containerPort", entry.get("port"))
        return None if number is None else (number, entry.get("protocol", "TCP"))
    return entry.get(MERGE_KEYS.get(field, ""))


def _equals(live: object, desired: object) -> bool:
    """Compare without tolerating additions; an empty list equals an absent one."""
    match desired:
        case dict() if isinstance(live, dict):
            names = {
                name for both in (live, desired) for name, value in both.items() if value != []
            }
            return all(
                name in live and name in desired and _equals(live[name], desired[name])
                for name in names
            )
        case list() if isinstance(live, list):
            return len(live) == len(desired) and all(map(_equals, live, desired))
        case _:
            return bool(live == desired)


ADDED = "diptychAdded"
"""Where a cached Deployment's metadata has the added paths, in place of its `managedFields`."""
_OWN = {FIELD_MANAGER, OVERWRITE_MANAGER}
_RESTARTED = "metadata.annotations.kubectl.kubernetes.io/restartedAt"


def additions(managed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return others' additions to our pod template: each path and its field manager.

    The annotation of `kubectl rollout restart` is left out.
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
