"""How records, runs and sessions look in JSON (agent.md "HTTP of the pod")."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from diptych.ports import Notice, RunEntry, SessionEntry
from diptych.record import TERMINAL, Record


def event_view(record: Record) -> dict[str, Any]:
    """Show a record as `/memory/events` and `/v1/runs/{id}/events` do."""
    return {
        "event_type": record.event_type,
        "seq": record.seq,
        "run_id": record.run_id,
        "session_id": record.session_id,
        "timestamp": timestamp(record.timestamp),
        "content": record.content,
        "metadata": record.metadata,
    }


def notice_view(notice: Notice) -> dict[str, Any]:
    """Show a notice: its type, and its fields beside it."""
    return {"type": notice.type, **notice.fields}


def run_view(entry: RunEntry, records: Sequence[Record] = ()) -> dict[str, Any]:
    """Show a run; with its records, also what became of it, or its answer so far as `text`.

    The records may be newer than the entry: they decide then.
    """
    newest = records[-1] if records else None
    view: dict[str, Any] = {
        "id": entry.run_id,
        "object": "run",
        "session_id": entry.session_id,
        "status": _status(entry, newest),
        "created_at": timestamp(entry.created),
        "last_seq": newest.seq if newest else entry.seq,
    }
    for record in records:
        view |= _outcome(record)
    if view["status"] not in TERMINAL and (answers := answers_so_far(records)):
        view["text"] = answers[-1]
    return view


def answers_so_far(records: Iterable[Record]) -> list[str]:
    """Put the answers together, one of each turn; the last one as far as it has come.

    Of that it is what follows the last reset. There are several in a run that was sent messages
    while it answered.
    """
    answers: list[str] = []
    text = ""
    for record in records:
        match record.event_type:
            case "text":
                text += _text(record)
            case "answer_reset":
                text = ""
            case "agent_response":
                answers.append(_text(record))
                text = ""
    return [*answers, text] if text else answers


def session_view(entry: SessionEntry) -> dict[str, Any]:
    """Show a session, as `/memory/sessions` lists it."""
    return {
        "session_id": entry.session_id,
        "runs": entry.runs,
        "events": entry.events,
        "created_at": timestamp(entry.created),
        "updated_at": timestamp(entry.updated),
    }


def timestamp(seconds: float) -> str:
    """Give a time in RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _status(entry: RunEntry, newest: Record | None) -> str:
    if newest is None:
        return entry.status
    if newest.event_type in TERMINAL:
        return newest.event_type
    return "running" if newest.seq > 1 else entry.status


def _outcome(record: Record) -> Mapping[str, Any]:
    match record.event_type:
        case "agent_response":
            return {"answer": record.content}
        case "completed":
            return {"finish_reason": record.metadata["finish_reason"], **_usage(record)}
        case "max_steps":
            return {"answer": record.content, "finish_reason": "length", **_usage(record)}
        case "failed":
            return {"error": {"code": record.metadata["code"], "message": record.content}}
        case "aborted":
            return {"error": {"code": "aborted", "message": record.content}}
        case _:
            return {}


def _usage(record: Record) -> Mapping[str, Any]:
    return {"usage": record.metadata["usage"]}


def _text(record: Record) -> str:
    return record.content if isinstance(record.content, str) else ""
