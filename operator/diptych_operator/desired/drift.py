"""Drift: does a live object still say what was applied to it? Pure.

Two questions, because each alone would miss something. The digest that the operator wrote on the
object tells whether the desired state has changed since (fields may have to be removed). Comparing
values tells whether somebody has edited what was applied.

What the API server adds (defaults) and what others add is no drift, except in a NetworkPolicy or
PodDisruptionBudget, where one more rule changes what the other rules mean.
"""

import hashlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from diptych_operator.desired.strategic_merge import MERGE_KEYS
from diptych_operator.resources.kinds import Object

_EXACT = {("NetworkPolicy", "spec"), ("PodDisruptionBudget", "spec")}
_ATOMIC = {"selector", "matchLabels", "nodeSelector"}  # as in server-side apply
_QUANTITIES = {"requests", "limits", "sizeLimit", "divisor"}
_OMITTED_IF_FALSE = {
    *("hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "readOnly"),
    "publishNotReadyAddresses",
}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_UNITS: dict[str | None, Decimal] = {
    None: Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTP", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTP", start=1)},
}


def digest(content: Mapping[str, Any]) -> str:
    """Give a short digest of an object; the order of its fields does not matter."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def has_drifted(live: Object, desired: Object) -> bool:
    """Say whether an object must be applied again; `desired` carries its digest."""
    for name, value in desired.items():
        if name in {"apiVersion", "kind"}:
            continue
        is_same = _equals if (desired["kind"], name) in _EXACT else contains
        if not is_same(live.get(name), value):
            return True
    return False


def contains(live: object, desired: object, field: str = "") -> bool:
    """Say whether a live value says everything that the desired value says."""
    match desired:
        case dict() if field in _ATOMIC:
            return live == desired
        case dict():
            return isinstance(live, dict) and all(
                contains(live.get(name), value, _inner_field(field, name))
                for name, value in desired.items()
            )
        case list() if not desired:
            return not live
        case list():
            return isinstance(live, list) and _contains_entries(live, desired, field)
        case "" | None:
            return not live
        case False if field in _OMITTED_IF_FALSE:
            return not live
        case _:
            is_quantity = field in _QUANTITIES
            return bool(live == desired) or (is_quantity and _is_same_amount(live, desired))


def _inner_field(field: str, name: str) -> str:
    return field if field in _QUANTITIES else name


def _contains_entries(live: list[Any], desired: list[Any], field: str) -> bool:
    if any(_merge_key(field, entry) is None for entry in desired):
        return len(live) == len(desired) and all(
            contains(one, other, field) for one, other in zip(live, desired, strict=True)
        )
    by_key = {_merge_key(field, entry): entry for entry in live}
    return all(contains(by_key.get(_merge_key(field, entry)), entry) for entry in desired)


def _merge_key(field: str, entry: object) -> object:
    """Give what identifies an entry of a keyed list; None if the list is not keyed."""
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


def _is_same_amount(live: object, desired: object) -> bool:
    amounts = [_amount(value) for value in (live, desired)]
    return None not in amounts and amounts[0] == amounts[1]


def _amount(value: object) -> Decimal | None:
    found = _QUANTITY.fullmatch(str(value))
    return Decimal(found[1]) * _UNITS[found[2]] if found else None
