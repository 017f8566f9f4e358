"""Reads approvals from a run's records: open or decided, by whom, and how long they waited."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diptych.core.codec import TERMINAL, Record, is_terminal

CLOSING = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
"""The result of a waiting call closes its approval: a new message superseded the call, or the run
ended."""

_NOTED = CLOSING | TERMINAL | {"approval_requested", "approval_decided"}


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that needs, or needed, approval.

    `closed` is the record that ended the wait; if it is a decision, `decided` is the same record.
    """

    requested: Record
    decided: Record | None = None
    closed: Record | None = None

    @property
    def call_id(self) -> str:
        return str(self.requested.metadata["call_id"])

    @property
    def is_open(self) -> bool:
        return self.closed is None


def approvals_of(records: Sequence[Record]) -> list[Approval]:
    """List a run's approvals in the order of the requests."""
    found: dict[str, Approval] = {}
    for record in records:
        if record.event_type == "approval_requested":
            found[str(record.metadata["call_id"])] = Approval(record)
        elif may_close_approval(record):
            is_decision = record.event_type == "approval_decided" and record.content != "closed"
            decided = record if is_decision else None
            for call_id in _closed_by(record, found):
                if found[call_id].is_open:
                    found[call_id] = replace(found[call_id], decided=decided, closed=record)
        elif is_terminal(record):
            return [a if a.closed else replace(a, closed=record) for a in found.values()]
    return list(found.values())


def open_approvals(records: Sequence[Record]) -> list[Approval]:
    """List the approvals without a decision."""
    return [approval for approval in approvals_of(records) if approval.is_open]


def _closed_by(record: Record, call_ids: Iterable[str]) -> list[str]:
    """Return the calls that a record closes: its own, and all below its delegation."""
    call_id = str(record.metadata["call_id"])
    return [each for each in call_ids if each == call_id or each.startswith(f"{call_id}.")]


def may_close_approval(record: Record) -> bool:
    """Whether a record may have closed an approval."""
    return record.event_type == "approval_decided" or record.event_type in CLOSING


def note_approvals(open_ids: set[str], record: Record) -> None:
    """Update the set of open approvals (call ids) by the next record."""
    if record.event_type not in _NOTED:
        return
    if record.event_type == "approval_requested":
        open_ids.add(str(record.metadata["call_id"]))
    elif may_close_approval(record):
        open_ids.difference_update(_closed_by(record, open_ids))
    else:
        open_ids.clear()


def waited_seconds(records: Sequence[Record], now: float) -> float:
    """Return for how many seconds at least one approval was open; `now` is a Unix timestamp."""
    waited, since = 0.0, None
    open_ids: set[str] = set()
    for record in records:
        note_approvals(open_ids, record)
        if open_ids and since is None:
            since = record.timestamp
        elif since is not None and not open_ids:
            waited, since = waited + max(0.0, record.timestamp - since), None
    return waited if since is None else waited + max(0.0, now - since)
