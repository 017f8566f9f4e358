"""Numbers from another agent: what a task may use or has used, and what protobuf makes of them."""

import re
from decimal import Decimal
from typing import Any

from diptych.core.budget import LIMITS, MAX_COUNT
from diptych.core.messages import JSON

_MONEY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,12})?")


def read_count(value: JSON) -> int | None:
    """Read a whole number; protobuf makes floats of them. None if it is none, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    is_count = 0 <= value <= MAX_COUNT and value == int(value)  # not so for NaN and infinity
    return int(value) if is_count else None


def read_money(value: JSON) -> Decimal | None:
    """Read money, a decimal text; None if it is none, negative, or too large."""
    return Decimal(value) if isinstance(value, str) and _MONEY.fullmatch(value) else None


def read_amounts(value: JSON) -> dict[str, Any] | None:
    """Read amounts by the names of limits; others are left out. None if one cannot be read."""
    if not isinstance(value, dict):
        return None
    found: dict[str, Any] = {}
    for name in LIMITS:
        if name == "wall_clock" or (amount := value.get(name)) is None:
            continue
        read = read_money(amount) if name == "cost" else read_count(amount)
        if read is None:
            return None
        found[name] = read
    return found


def with_integers(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Make whole numbers integers again: protobuf's `Value` knows only floats."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [with_integers(item) for item in value]
        case dict():
            return {key: with_integers(item) for key, item in value.items()}
        case _:
            return value
