"""Does an object still say what was applied to it? Pure.

Two questions, as each alone would miss something. The digest that the operator wrote on the
object tells whether *other* things are to be applied now (fields may have to go). Comparing the
values tells whether somebody has changed what was applied.

What the API server adds (defaults) and what others add beside it is no drift; in a NetworkPolicy
it is, as a rule more changes what the others mean.
"""

import hashlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from diptych_operator.desired.strategic_merge import KEYS
from diptych_operator.resources.kinds import APPLIED, Object

_EXACT = {("NetworkPolicy", "spec"), ("PodDisruptionBudget", "spec")}
_ATOMIC = {"selector", "matchLabels", "nodeSelector"}  # as in server-side apply
_QUANTITIES = {"requests", "limits", "sizeLimit", "divisor"}
_LEFT_OUT_IF_FALSE = {
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
    """Give a short text that is another one for every other content."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def has_drifted(live: Object | None, desired: Object) -> bool:
    """Say whether an object must be applied again; `desired` carries its digest."""
    if live is None or not holds(live["metadata"], desired["metadata"]):
        return True
    for name, value in desired.items():
        if name in {"apiVersion", "kind", "metadata"}:
            continue
        same = _equal if (desired["kind"], name) in _EXACT else holds
        if not same(live.get(name), value):
            return True
    return False


def stamp_of(content: Object) -> str | None:
    """Give the digest that stands on an object."""
    stamp: str | None = (content["metadata"].get("annotations") or {}).get(APPLIED)
    return stamp


def holds(live: object, desired: object, field: str = "") -> bool:
    """Say whether a live value says all that the desired one does."""
    match desired:
        case dict() if field in _ATOMIC:
            return live == desired
        case dict():
            return isinstance(live, dict) and all(
                holds(live.get(name), value, _below(field, name)) for name, value in desired.items()
            )
        case list() if not desired:
            return not live
        case list():
            return isinstance(live, list) and _holds_list(live, desired, field)
        case "" | None:
            return not live
        case False if field in _LEFT_OUT_IF_FALSE:
            return not live
        case _:
            return bool(live == desired) or (field in _QUANTITIES and _same_amount(live, desired))


def _below(field: str, name: str) -> str:
    return field if field in _QUANTITIES else name


def _holds_list(live: list[Any], desired: list[Any], field: str) -> bool:
    if any(_key(field, entry) is None for entry in desired):
        return len(live) == len(desired) and all(
            holds(one, other, field) for one, other in zip(live, desired, strict=True)
        )
    by_key = {_key(field, entry): entry for entry in live}
    return all(holds(by_key.get(_key(field, entry)), entry) for entry in desired)


def _key(field: str, entry: object) -> object:
    """Give what tells an entry of a list from the others; None if the list has no such thing."""
    if not isinstance(entry, dict):
        return None
    if field == "ports":  # of a container or of a Service
        number = entry.get("containerPort", entry.get("port"))
        return None if number is None else (number, entry.get("protocol", "TCP"))
    return entry.get(KEYS.get(field, ""))


def _equal(live: object, desired: object) -> bool:
    """Compare with nothing added; what is empty may be left out."""
    match desired:
        case dict() if isinstance(live, dict):
            names = {
                name for both in (live, desired) for name, value in both.items() if value != []
            }
            return all(
                name in live and name in desired and _equal(live[name], desired[name])
                for name in names
            )
        case list() if isinstance(live, list):
            return len(live) == len(desired) and all(map(_equal, live, desired))
        case _:
            return bool(live == desired)


def _same_amount(live: object, desired: object) -> bool:
    amounts = [_amount(value) for value in (live, desired)]
    return None not in amounts and amounts[0] == amounts[1]


def _amount(value: object) -> Decimal | None:
    found = _QUANTITY.fullmatch(str(value))
    return Decimal(found[1]) * _UNITS[found[2]] if found else None
