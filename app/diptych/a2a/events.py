"""A task's events, sent live to its caller (loop.md §5 "Delegation").

Each record of the task's run, and each event of its own children, travels as an *event* in the
metadata of a status update, under `extension.URI`:

    {"event": {"type": "tool_call", "seq": 4, "timestamp": 1.5, "path": ["call_1_1"],
               "content": {"tool": "add", "arguments": {}}, "metadata": {"callId": "call_2_1"}}}

`path` holds the ids of the calls that lead from the task's run to the event's run: none for its
own. `seq` is the record's, 0 for events that are not recorded. Long texts are cut.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from a2a.types import Task

from diptych.a2a import extension
from diptych.core.codec import Record
from diptych.core.messages import JSON, JSONObject
from diptych.core.waits import ANSWERS, REQUESTS
from diptych.ports import ChildEvent, Notice

DELEGATION_PROGRESS = "delegation_progress"
MAX_TEXT_CHARS = 2_000  # of one text in an event
MAX_EVENT_BYTES = 16 * 1024  # of its content and metadata, as JSON
MAX_WAIT_BYTES = 64 * 1024  # of a call that waits: people must see all of what they decide on
MAX_TASK_BYTES = 512 * 1024  # of the newest events in a whole task

_KEPT_METADATA = frozenset(
    {
        *("call_id", "step", "id", "tool", "agent", "context_id", "path", "child", "call"),
        *("usage", "finish_reason", "code", "error", "error_type", "reason", "resumes"),
        *("expires_at", "decision_id", "subject", "is_expired"),
        *("kind", "schema", "url", "input_id"),
        *("keeps", "from_seq", "attempt", "lost_tail"),
    }
)
_UNTOLD = frozenset({"offered", "text"})  # the caller gets the answer's text as an artifact
_LIVE = frozenset({"tool_progress", "format_warning", "model_wait"})


def record_event(record: Record) -> JSONObject | None:
    """Return the event of a record of the task's own run; None for those that stay in the agent."""
    if record.event_type in _UNTOLD:
        return None
    content = "" if record.event_type == "model_reply" else record.content
    metadata = {k: v for k, v in record.metadata.items() if k in _KEPT_METADATA}
    if isinstance(child := metadata.get("child"), Mapping):
        metadata["child"] = {k: v for k, v in child.items() if k != "text"}
    place = record.seq, record.timestamp
    return _event(record.event_type, (), content, metadata, place)


def notice_event(notice: Notice) -> JSONObject | None:
    """Return the event of a notice: a child's event or text, or a tool's progress."""
    fields: Mapping[str, Any] = notice.fields
    if notice.type in _LIVE:
        names = {"call_id": fields.get("call_id"), "tool": fields.get("target")}
        about = {name: value for name, value in names.items() if value}
        return _event(notice.type, (), fields["message"], about)
    if notice.type != DELEGATION_PROGRESS or "path" not in fields:
        return None
    if event := fields.get("event"):
        return {"event": {**event, "path": list(fields["path"])}}
    return _event("text", fields["path"], fields["content"], {})


def add_events(task: Task, records: Sequence[Record]) -> Task:
    """Add the run's newest events to the task's metadata, for callers that missed them."""
    events, size = list[JSON](), 0
    for told in filter(None, map(record_event, reversed(records))):
        size += len(orjson.dumps(told))
        if size > MAX_TASK_BYTES:
            break
        events.append(told["event"])
    about = extension.metadata_under_uri(task.metadata) or {}
    task.metadata.update(extension.under_uri({**about, "events": events[::-1]}))
    return task


def read_event(value: JSON) -> ChildEvent | None:
    """Read an event from a status's metadata; None if absent or too large."""
    match value:
        case {
            "event": {
                "type": str(kind),
                "path": list(path),
                "seq": int(seq),
                "timestamp": int() | float() as timestamp,
                "content": content,
                "metadata": dict(metadata),
            }
        } if _size([content, metadata]) <= 2 * MAX_WAIT_BYTES:
            return ChildEvent(kind, tuple(map(str, path)), seq, timestamp, content, metadata)
        case _:
            return None


def _event(
    kind: str,
    path: Sequence[str],
    content: JSON,
    metadata: Mapping[str, JSON],
    place: tuple[int, float] = (0, 0.0),
) -> JSONObject:
    seq, timestamp = place
    is_whole = kind in REQUESTS | ANSWERS and _size([content, metadata]) <= MAX_WAIT_BYTES
    if not is_whole:
        content, metadata = _cut(content), {k: _cut(v) for k, v in metadata.items()}
        if _size([content, metadata]) > MAX_EVENT_BYTES:  # many short texts
            names = ("call_id", "step", "tool", "agent", "usage")
            content = "… (too long to be sent)"
            metadata = {name: metadata[name] for name in names if name in metadata}
    return {
        "event": {
            "type": kind,
            "path": list(path),
            "seq": seq,
            "timestamp": timestamp,
            "content": content,
            "metadata": dict(metadata),
        }
    }


def _cut(value: JSON, depth: int = 8) -> JSON:
    """Truncate long texts, long lists and deep nesting."""
    match value:
        case str():
            return value if len(value) <= MAX_TEXT_CHARS else value[:MAX_TEXT_CHARS] + "…"
        case list() | Mapping() if depth == 0:
            return "…"
        case list():
            return [_cut(item, depth - 1) for item in value[:100]]
        case Mapping():
            return {str(key)[:100]: _cut(item, depth - 1) for key, item in value.items()}
        case _:
            return value


def _size(value: object) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # nested too deeply, or numbers beyond 64 bits
        return 2 * MAX_WAIT_BYTES + 1
