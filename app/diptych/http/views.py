"""JSON views of records, runs and sessions (agent.md "HTTP of the pod")."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from diptych.budgets.recorded_use import RecordedUse
from diptych.core.codec import Record, is_terminal
from diptych.core.events import MessageQueued
from diptych.core.json_values import usage_value
from diptych.core.messages import Usage
from diptych.core.waits import Wait, asked_fields, open_waits, waits_of
from diptych.ports import Notice
from diptych.ports.entries import RunEntry, SessionEntry
from diptych.ports.ids import public_id, subject_of
from diptych.runs.answers import TURN, answers_so_far, whole_answer


def event_view(record: Record) -> dict[str, Any]:
    """Return a record as `/memory/events` and `/v1/runs/{id}/events` show it."""
    return {
        "event_type": record.event_type,
        "seq": record.seq,
        "run_id": record.run_id,
        "session_id": public_id(record.session_id),
        "timestamp": timestamp(record.timestamp),
        "content": record.content,
        "metadata": record.metadata,
    }


def notice_view(notice: Notice) -> dict[str, Any]:
    """Return a notice: its type and fields."""
    return {"type": notice.type, **notice.fields}


def run_view(entry: RunEntry, records: Sequence[Record] = ()) -> dict[str, Any]:
    """Return a run; with records also its outcome, or as `text` its answer so far.

    Newer records take precedence over the entry.
    """
    newest = records[-1] if records else None
    view: dict[str, Any] = {
        "id": entry.run_id,
        "object": "run",
        "session_id": entry.session_id,
        "status": run_status(entry, records),
        "created_at": timestamp(entry.created),
        "updated_at": timestamp(newest.timestamp if newest else entry.updated),
        "last_seq": newest.seq if newest else entry.seq,
    }
    if records and "resumes" in records[0].metadata:
        view["resumes"] = records[0].metadata["resumes"]
    waits = waits_of(records)
    if approvals := [approval_view(wait) for wait in waits if wait.kind == "approval"]:
        view["approvals"] = approvals
    if inputs := [input_view(wait) for wait in waits if wait.kind == "input"]:
        view["inputs"] = inputs
    if newest and is_terminal(newest):
        view |= _outcome(records)
    elif answers := answers_so_far(records):
        view["text"] = TURN.join(answers)
    return view


def queue_view(messages: Sequence[MessageQueued] | None) -> dict[str, Any]:
    """Return a run's queued messages; empty if they are unknown."""
    if messages is None:
        return {}
    queue: dict[str, list[dict[str, str]]] = {"steer": [], "follow_up": []}
    for each in messages:
        sender = {"sent_by": each.subject} if each.subject else {}
        queue["follow_up" if each.is_follow_up else "steer"].append(
            {"message": each.message, **sender}
        )
    return {"queue": queue}


def session_view(entry: SessionEntry) -> dict[str, Any]:
    """Return a session as `/memory/sessions` lists it."""
    return {
        "session_id": public_id(entry.session_id),
        **({"owner": owner} if (owner := subject_of(entry.session_id)) else {}),
        "runs": entry.runs,
        "events": entry.events,
        "created_at": timestamp(entry.created),
        "updated_at": timestamp(entry.updated),
    }


def timestamp(seconds: float) -> str:
    """Format a Unix time in seconds as RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def approval_view(approval: Wait) -> dict[str, Any]:
    """Return a call that waits, or waited, for a decision."""
    return {
        "object": "approval",
        **asked_fields(approval.requested),
        "step": approval.requested.metadata["step"],
        **_wait_view(approval, "decision", "decided"),
    }


def input_view(wait: Wait) -> dict[str, Any]:
    """Return a question of a call, without the content of its answer."""
    return {
        "object": "input",
        **asked_fields(wait.requested),
        **_wait_view(wait, "action", "answered"),
    }


def _wait_view(wait: Wait, answer: str, done: str) -> dict[str, Any]:
    """Return the other fields of a wait; `answer` and `done` name the answer and its status."""
    requested, answered = wait.requested, wait.answered
    about: Mapping[str, Any] = requested.metadata
    view = {
        "run_id": requested.run_id,
        "session_id": public_id(requested.session_id),
        "call_id": wait.call_id,
        "path": about.get("path", [wait.call_id]),
        **({"agent": about["agent"]} if "path" in about else {}),
        "status": "waiting" if wait.is_open else done if answered else "closed",
        "requested_at": timestamp(requested.timestamp),
        "expires_at": timestamp(about["expires_at"]),
    }
    if answered:
        view |= {answer: answered.content, f"{done}_at": timestamp(answered.timestamp)}
        names = {"subject": f"{done}_by", "caller": "passed_on_by", "call": "made_as"}
        names["reason"] = "decision_reason"
        said = answered.metadata
        view |= {name: said[key] for key, name in names.items() if key in said}
    return view


def run_status(entry: RunEntry, records: Sequence[Record]) -> str:
    """Return a run's status; its records may be newer than the entry."""
    if not records:
        return entry.status
    newest = records[-1]
    if open_waits(records):
        return "input-required"
    if is_terminal(newest):
        return newest.event_type
    return "running" if newest.seq > 1 else entry.status


def _outcome(records: Sequence[Record]) -> Mapping[str, Any]:
    end = records[-1]
    match end.event_type:
        case "completed":
            outcome = {"finish_reason": end.metadata["finish_reason"], **_usage(end)}
        case "max_steps":
            outcome = {"finish_reason": "length", **_usage(end)}
        case "failed":
            outcome = {"error": {"code": end.metadata["code"], "message": end.content}}
            if text := end.metadata.get("text"):  # the last answer, which does not fit its schema
                outcome["text"] = text
        case _:
            outcome = {"error": {"code": "aborted", "message": end.content}}
    if (used := RecordedUse(records).children_usage) != Usage():
        outcome["children_usage"] = usage_value(used)
    answer = whole_answer(records)
    return {**outcome, **({"answer": answer} if answer is not None else {})}


def _usage(record: Record) -> Mapping[str, Any]:
    return {"usage": record.metadata["usage"]}
