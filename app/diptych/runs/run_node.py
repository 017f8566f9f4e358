"""Summarizes a run and its delegations from its records, as a node of a tree of runs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diptych.budgets.recorded_use import RecordedUse
from diptych.core.budget import decimal_text
from diptych.core.codec import Record, is_terminal
from diptych.core.json_values import usage_value
from diptych.core.messages import JSON
from diptych.runs.answers import end_code

MAX_TASK_CHARS = 2_000
_RESULTS = frozenset({"delegation_response", "delegation_error"})


def run_node(records: Sequence[Record], status: str) -> dict[str, JSON]:
    """Return a run's summary, with its delegations.

    Times are in seconds since the epoch. `usage` covers the run's own model calls, `children_usage`
    is reported by its children; costs are decimal strings at the manifest's prices.
    """
    first, newest = records[0], records[-1]
    has_ended = is_terminal(newest)
    use = RecordedUse(records)
    node: dict[str, JSON] = {
        "run_id": first.run_id,
        "status": status,
        "started_at": first.timestamp,
        "ended_at": newest.timestamp if has_ended else None,
        "model_calls": use.own.model_calls,
        "tool_calls": sum(r.event_type == "tool_call" for r in records),
        "usage": usage_value(use.usage),
        "children_usage": usage_value(use.children_usage),
        "cost": decimal_text(use.own.cost),
        "children_cost": decimal_text(use.used.cost - use.own.cost),
        "delegations": list(_delegations(records)),
    }
    if code := end_code(newest):
        node["code"] = code
    if parent := first.metadata.get("parent"):
        node["parent"] = parent
    return node


def _delegations(records: Iterable[Record]) -> Iterable[JSON]:
    records = tuple(records)
    results: Mapping[str, Record] = {
        str(r.metadata["call_id"]): r for r in records if r.event_type in _RESULTS
    }
    for record in records:
        if record.event_type != "delegation_request":
            continue
        about: Any = record.metadata
        content: Any = record.content
        node: dict[str, JSON] = {
            "call_id": about["call_id"],
            "step": about["step"],
            "agent": content["agent"],
            "task": content["task"][:MAX_TASK_CHARS],
            "context_id": about["context_id"],
            "status": "running",
            "started_at": record.timestamp,
            "ended_at": None,
        }
        if result := results.get(about["call_id"]):
            about_end: Any = result.metadata
            node["status"] = about_end.get("error", "completed")
            node["ended_at"] = result.timestamp
            if child := about_end.get("child"):
                node["child"] = {name: v for name, v in child.items() if name != "text"}
        yield node
