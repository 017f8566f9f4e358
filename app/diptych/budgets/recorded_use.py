"""What the records of a run say that it has used: for views, and for whoever goes on with it.

What counts for budgets is `Used` (tokens, money, calls, steps); views show `Usage`, the tokens of
prompts and of replies apart.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

from diptych.core.budget import Budget, Prices, decode_budget
from diptych.core.codec import Record, event_of
from diptych.core.events import Returned
from diptych.core.excerpts import READ_RESULT
from diptych.core.json_values import read_prices, read_usage
from diptych.core.messages import Usage, Used
from diptych.core.spending import child_use

_MODEL_CALLS = frozenset({"model_reply", "compacted"})
_CHILD_ENDS = frozenset({"delegation_response", "delegation_error"})
_CALLS = frozenset(
    {
        "tool_call",
        "tool_error",
        "delegation_request",
        "delegation_error",
        "approval_requested",
    }
)


def recorded_use(records: Iterable[Record], prices: Prices | None = None) -> Used:
    """Add up what is on record of a run and its children. Tokens without a price cost nothing.

    `prices` are the run's, if its beginning is not among the records.
    """
    use = RecordedUse(prices)
    for record in records:
        use.add(record)
    return use.used


class RecordedUse:
    """Adds up what a run and its children have used, record by record."""

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices
        self._usage = Usage()
        self._others = Used()  # all but tokens and money of the run's own model calls
        self._is_step_counted = True  # of the newest reply
        self._shares: dict[str, Budget] = {}

    @property
    def used(self) -> Used:
        """What was used by now."""
        usage = self._usage
        cost = (self._prices or Prices()).cost(usage)
        return self._others + Used(usage.prompt_tokens + usage.completion_tokens, cost)

    def add(self, record: Record) -> None:
        """Add the next record of the run."""
        about: Any = record.metadata
        if record.event_type == "offered":
            self._prices = read_prices(about) or self._prices
        elif is_reply(record):
            self._usage += read_usage(about["usage"])
            self._others += Used(model_calls=1)
            self._is_step_counted = record.event_type == "compacted"
        elif record.event_type == "action_error":
            self._others += Used(steps=1)
            self._is_step_counted = True
        elif record.event_type in _CALLS:
            steps = int(not self._is_step_counted)
            self._others += Used(steps=steps, tool_calls=_is_tool_call(record))
            self._is_step_counted = True
        if record.event_type == "delegation_request":
            self._shares[about["call_id"]] = decode_budget(about.get("budget", {}))
        elif record.event_type in _CHILD_ENDS:
            event = cast("Returned", event_of(record))
            share = self._shares.pop(event.result.call_id, Budget())
            self._others += child_use(event.result, share, self._prices)


def is_reply(record: Record) -> bool:
    """Whether it is of a request to the model that counts."""
    return record.event_type in _MODEL_CALLS and "error" not in _about(record)


def with_times_asked(records: Iterable[Record]) -> Iterator[tuple[Record, float]]:
    """Give each record with the time at which was asked for what it tells.

    A reply was asked for when the record before it was written, and what a child has used when it
    was called.
    """
    newest, called = 0.0, dict[str, float]()
    for record in records:
        asked_at = record.timestamp
        if record.event_type == "delegation_request":
            called[_about(record)["call_id"]] = asked_at
        elif record.event_type in _CHILD_ENDS:
            asked_at = called.get(_about(record)["call_id"], asked_at)
        elif record.event_type in _MODEL_CALLS:
            asked_at = newest or asked_at
        newest = record.timestamp
        yield record, asked_at


def recorded_budget(records: Iterable[Record]) -> Budget:
    """Give the budget of a run that has begun: the manifest's, as its request has tightened it."""
    asked = offered = Budget()
    has_prices = False
    for record in records:
        about: Any = record.metadata
        if record.event_type == "user_message" and record.seq == 1:
            asked = decode_budget(about.get("budget", {}))
        elif record.event_type == "offered":
            offered, has_prices = decode_budget(about.get("budget", {})), "prices" in about
            break
    budget = offered.tightened(asked)
    return budget if has_prices else replace(budget, cost=None)


def added_usage(record: Record) -> Usage:
    """Give what a record adds to what its run and all its children have used."""
    if record.event_type in _MODEL_CALLS:
        return read_usage(_about(record)["usage"])
    return child_usage(record)


def child_usage(record: Record) -> Usage:
    """Give what a record says that a child and its own children have used."""
    if record.event_type in _CHILD_ENDS:
        used = _about(record).get("child", {}).get("usage")
        return read_usage(used) if used else Usage()
    return Usage()


def children_usage(records: Iterable[Record]) -> Usage | None:
    """Add up what the children of a run have used; None if none has said so."""
    said = [child_usage(record) for record in records]
    return sum(said, Usage()) if any(usage != Usage() for usage in said) else None


def _is_tool_call(record: Record) -> bool:
    content: Any = record.content
    return record.event_type == "tool_call" and content["tool"] != READ_RESULT.long_name


def _about(record: Record) -> Any:  # noqa: ANN401 - as the store gives it
    return record.metadata
