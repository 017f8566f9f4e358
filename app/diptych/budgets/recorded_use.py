"""Derives a run's usage from its log, for budgets, views and a new owner.

Budgets need `Used` (tokens, money, calls, steps); views need `Usage` (prompt and reply tokens).
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


def recorded_use(records: Iterable[Record]) -> Used:
    """Return the usage logged for a run and its children."""
    return RecordedUse(records).used


class RecordedUse:
    """Adds up the usage of a run and its children, record by record.

    `usage` and `children_usage` are tokens for views: of the run's own requests, and as reported by
    its children. Without a price, tokens cost nothing; `prices` are needed only if the run's first
    records are missing.
    """

    def __init__(self, records: Iterable[Record] = (), prices: Prices | None = None) -> None:
        self.usage = Usage()
        self.children_usage = Usage()
        self._prices = prices
        self._counted = Usage()  # without replies that failed
        self._others = Used()  # everything but the tokens and cost of the run's own requests
        self._below = Used()
        self._is_step_counted = True  # for the newest reply
        self._shares: dict[str, Budget] = {}
        for record in records:
            self.add(record)

    @property
    def tree_usage(self) -> Usage:
        """The tokens of the run and its children."""
        return self.usage + self.children_usage

    @property
    def own(self) -> Used:
        """The run's own usage."""
        usage = self._counted
        cost = (self._prices or Prices()).cost(usage)
        return self._others + Used(usage.prompt_tokens + usage.completion_tokens, cost)

    @property
    def used(self) -> Used:
        """The usage of the run and its children."""
        return self.own + self._below

    def add(self, record: Record) -> None:
        """Add the run's next record."""
        about: Any = record.metadata
        if record.event_type == "offered":
            self._prices = read_prices(about) or self._prices
        elif record.event_type in _MODEL_CALLS:
            self.usage += read_usage(about["usage"])
            if "error" not in about:
                self._counted += read_usage(about["usage"])
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
            result = cast("Returned", event_of(record)).result
            share = self._shares.pop(result.call_id, Budget())
            self._below += child_use(result, share, self._prices)
            if result.child and result.child.usage:
                self.children_usage += result.child.usage


def with_times_asked(records: Iterable[Record]) -> Iterator[tuple[Record, float]]:
    """Yield each record with the time at which its usage was requested.

    For a reply, that is the time of the record before; for a child's result, the time of the call.
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
    """Return the budget of a run that has begun: the manifest's, tightened by the request."""
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


def _is_tool_call(record: Record) -> bool:
    content: Any = record.content
    return record.event_type == "tool_call" and content["tool"] != READ_RESULT.long_name


def _about(record: Record) -> Any:  # noqa: ANN401 - as the store gives it
    return record.metadata
