"""Reads waiting calls from a run's records: for approval, or for input they asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from diptych.core.codec import TERMINAL, Record, is_terminal
from diptych.core.events import WaitKind
from diptych.core.messages import JSON

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
    def kind(self) -> WaitKind:
        return "approval" if self.requested.event_type == "approval_requested" else "input"

    @property
    def answer_id(self) -> JSON:
        """The id of the answer; None without one."""
        about = self.answered.metadata if self.answered else {}
        return about.get("decision_id") or about.get("input_id")

    @property
    def is_open(self) -> bool:
        return self.closed is None


def waits_of(records: Iterable[Record], kind: WaitKind | None = None) -> list[Wait]:
    """List a run's waits in the order of the requests, of one kind if given.

    A call may have several, but at most one open at a time.
    """
    return [wait for wait in _all_waits(records) if kind in (None, wait.kind)]


def open_waits(records: Iterable[Record], kind: WaitKind | None = None) -> list[Wait]:
    """List the calls that wait, for one kind of answer if given."""
    return [wait for wait in waits_of(records, kind) if wait.is_open]


def asked_fields(requested: Record) -> dict[str, JSON]:
    """Return what a call asks, as clients see it: the call and why, or the question."""
    about = requested.metadata
    if requested.event_type == "approval_requested":
        return {"call": requested.content, "reason": about.get("reason", "")}
    given = {key: about[key] for key in ("kind", "schema", "url") if key in about}
    return {**given, "message": requested.content}


def _all_waits(records: Iterable[Record]) -> list[Wait]:
    found: list[Wait] = []
    places: dict[str, int] = {}  # of the open waits, by call id
    for record in records:
        if record.event_type in REQUESTS:
            places[str(record.metadata["call_id"])] = len(found)
            found.append(Wait(record))
        elif may_close_wait(record):
            is_answer = record.event_type in ANSWERS and record.content != "closed"
            answered = record if is_answer else None
            for call_id in _closed_by(record.metadata, places):
                place = places.pop(call_id)
                found[place] = replace(found[place], answered=answered, closed=record)
        elif is_terminal(record):
            return [wait if wait.closed else replace(wait, closed=record) for wait in found]
    return found


def _closed_by(metadata: Mapping[str, JSON], call_ids: Iterable[str]) -> list[str]:
    """Return the calls that a record closes: its own, and all below its delegation."""
    call_id = str(metadata.get("call_id"))
    return [each for each in call_ids if each == call_id or each.startswith(f"{call_id}.")]


def may_close_wait(record: Record) -> bool:
    """Whether a record may have ended a wait."""
    return record.event_type in ANSWERS or record.event_type in CLOSING


def note_waits(open_ids: set[str], event_type: str, metadata: Mapping[str, JSON]) -> None:
    """Update the set of waiting calls (ids) by the next record."""
    if event_type in REQUESTS:
        open_ids.add(str(metadata.get("call_id")))
    elif event_type in ANSWERS | CLOSING:
        open_ids.difference_update(_closed_by(metadata, open_ids))
    elif event_type in TERMINAL:
        open_ids.clear()


def waited_seconds(records: Sequence[Record], now: float) -> float:
    """Return for how many seconds at least one call waited; `now` is a Unix timestamp."""
    waited, since = 0.0, None
    open_ids: set[str] = set()
    for record in records:
        note_waits(open_ids, record.event_type, record.metadata)
        if open_ids and since is None:
            since = record.timestamp
        elif since is not None and not open_ids:
            waited, since = waited + max(0.0, record.timestamp - since), None
    return waited if since is None else waited + max(0.0, now - since)
