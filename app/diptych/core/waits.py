"""Reads waiting calls from a run's records: for approval, or for input they asked for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diptych.core.codec import Record, is_terminal

CLOSING = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
"""The result of a call closes its wait: a new message superseded it, or the run ended."""

REQUESTS = frozenset({"approval_requested", "input_requested"})
ANSWERS = frozenset({"approval_decided", "input_received"})


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits, or waited, for approval or input.

    `closed` is the record that ended the wait; if it is an answer, `answered` is the same record.
    """

    requested: Record
    answered: Record | None = None
    closed: Record | None = None

    @property
    def call_id(self) -> str:
        return str(self.requested.metadata["call_id"])

    @property
    def is_for_approval(self) -> bool:
        return self.requested.event_type == "approval_requested"

    @property
    def is_open(self) -> bool:
        return self.closed is None


def waits_of(records: Iterable[Record]) -> list[Wait]:
    """List a run's waits in the order of the requests. A call has at most one open at a time."""
    found: list[Wait] = []
    places: dict[str, int] = {}  # of the open waits, by call id
    for record in records:
        if record.event_type in REQUESTS:
            places[str(record.metadata["call_id"])] = len(found)
            found.append(Wait(record))
        elif may_close_wait(record):
            is_answer = record.event_type in ANSWERS and record.content != "closed"
            answered = record if is_answer else None
            for call_id in _closed_by(record, places):
                place = places.pop(call_id)
                found[place] = replace(found[place], answered=answered, closed=record)
        elif is_terminal(record):
            return [wait if wait.closed else replace(wait, closed=record) for wait in found]
    return found


def approvals_of(records: Iterable[Record]) -> list[Wait]:
    """List a run's approvals in the order of the requests."""
    return [wait for wait in waits_of(records) if wait.is_for_approval]


def inputs_of(records: Iterable[Record]) -> list[Wait]:
    """List a run's questions in their order; a call may have several."""
    return [wait for wait in waits_of(records) if not wait.is_for_approval]


def open_waits(records: Iterable[Record]) -> list[Wait]:
    """List the calls that wait for an approval or for input."""
    return [wait for wait in waits_of(records) if wait.is_open]


def open_approvals(records: Iterable[Record]) -> list[Wait]:
    """List the approvals without a decision."""
    return [wait for wait in open_waits(records) if wait.is_for_approval]


def open_inputs(records: Iterable[Record]) -> list[Wait]:
    """List the questions without an answer."""
    return [wait for wait in open_waits(records) if not wait.is_for_approval]


def _closed_by(record: Record, call_ids: Iterable[str]) -> list[str]:
    """Return the calls that a record closes: its own, and all below its delegation."""
    call_id = str(record.metadata["call_id"])
    return [each for each in call_ids if each == call_id or each.startswith(f"{call_id}.")]


def may_close_wait(record: Record) -> bool:
    """Whether a record may have ended a wait."""
    return record.event_type in ANSWERS or record.event_type in CLOSING


def note_waits(open_ids: set[str], record: Record) -> None:
    """Update the set of waiting calls (ids) by the next record."""
    if record.event_type in REQUESTS:
        open_ids.add(str(record.metadata["call_id"]))
    elif may_close_wait(record):
        open_ids.difference_update(_closed_by(record, open_ids))
    elif is_terminal(record):
        open_ids.clear()


def waited_seconds(records: Sequence[Record], now: float) -> float:
    """Return for how many seconds at least one call waited; `now` is a Unix timestamp."""
    waited, since = 0.0, None
    open_ids: set[str] = set()
    for record in records:
        note_waits(open_ids, record)
        if open_ids and since is None:
            since = record.timestamp
        elif since is not None and not open_ids:
            waited, since = waited + max(0.0, record.timestamp - since), None
    return waited if since is None else waited + max(0.0, now - since)
