"""A tree of runs as another agent gives it: read, checked and bounded."""

from collections.abc import Mapping
from decimal import Decimal

from diptych.a2a.amounts import read_money
from diptych.a2a.reports import read_tokens
from diptych.core.budget import decimal_text
from diptych.core.json_values import usage_value
from diptych.core.messages import JSON, Usage

MAX_NODES = 500  # runs of one child, with all below it
MAX_DELEGATIONS = 200  # of one run
MAX_TEXT_CHARS = 2_000
MAX_NUMBER = 10.0**11

_TEXTS = ("agent", "run_id", "status", "code", "problem")
_NUMBERS = ("started_at", "ended_at", "model_calls", "tool_calls")
_CALL_TEXTS = ("call_id", "agent", "task", "context_id", "status", "problem")
_CALL_NUMBERS = ("step", "started_at", "ended_at")
_CHILD_TEXTS = ("url", "task_id", "state", "code")


def read_tree(value: JSON, depth: int) -> dict[str, JSON] | None:
    """Read a run with what is below it, at most so deep; None if it is no run.

    What is not of the form is left out, and what is too much is not read.
    """
    return _node(value, depth, [MAX_NODES])


def _node(value: JSON, depth: int, room: list[int]) -> dict[str, JSON] | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("run_id"), str) or not room[0]:
        return None
    room[0] -= 1
    node = _fields(value, _TEXTS, _NUMBERS)
    for name in ("usage", "children_usage"):
        node[name] = usage_value(read_tokens(value.get(name)) or Usage())
    for name in ("cost", "children_cost"):
        node[name] = decimal_text(read_money(value.get(name)) or Decimal(0))
    if isinstance(parent := value.get("parent"), Mapping):
        node["parent"] = _fields(parent, ("agent", "run_id", "call_id"), ())
    calls = value.get("delegations")
    listed = calls[:MAX_DELEGATIONS] if isinstance(calls, list) else []
    node["delegations"] = [
        _delegation(call, depth, room) for call in listed if isinstance(call, Mapping)
    ]
    return node


def _delegation(value: Mapping[str, JSON], depth: int, room: list[int]) -> JSON:
    call = _fields(value, _CALL_TEXTS, _CALL_NUMBERS)
    if isinstance(child := value.get("child"), Mapping):
        about = _fields(child, _CHILD_TEXTS, ())
        if used := read_tokens(child.get("usage")):
            about["usage"] = usage_value(used)
        call["child"] = about
    if depth > 0 and (below := _node(value.get("run"), depth - 1, room)):
        call["run"] = below
    return call


def _fields(
    value: Mapping[str, JSON], texts: tuple[str, ...], numbers: tuple[str, ...]
) -> dict[str, JSON]:
    found: dict[str, JSON] = {}
    for name in texts:
        if isinstance(text := value.get(name), str):
            found[name] = text[:MAX_TEXT_CHARS]
    for name in numbers:
        number = value.get(name)
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        found[name] = number if is_number and 0 <= number <= MAX_NUMBER else None  # type: ignore[operator]
    return found
