"""How records, runs and sessions look in JSON (agent.md "HTTP of the pod")."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from diptych.ports import Notice, RunEntry, SessionEntry
from diptych.record import Record


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
    """Show a run; with its records, also what became of it."""
    view: dict[str, Any] = {
        "id": entry.run_id,
        "object": "run",
        "session_id": entry.session_id,
        "status": entry.status,
        "created_at": timestamp(entry.created),
    }
    for record in records:
        view |= _outcome(record)
    return view


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
