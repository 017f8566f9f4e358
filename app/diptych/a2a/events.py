"""What happens in a task, told to its caller while it happens (loop.md §5 "Delegation").

Each record of the task's run, and what its own children tell of theirs, travels as an *event* in
the metadata of a status update, under `extension.URI`:

    {"event": {"type": "tool_call", "seq": 4, "timestamp": 1.5, "path": ["call_1_1"],
               "content": {"tool": "add", "arguments": {}}, "metadata": {"callId": "call_2_1"}}}

`path` holds the ids of the calls that lead from the task's run to the run that the event is of:
none for its own. `seq` is that of the record, 0 for what is only live. What is long is cut.

A caller takes events of an agent only if it speaks the extension, and takes nothing of their form
for granted: anybody may have made them up.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from diptych.a2a.amounts import with_integers
from diptych.core.codec import Record
from diptych.core.messages import JSON, JSONObject
from diptych.ports import ChildEvent, Notice

DELEGATION_PROGRESS = "delegation_progress"
MAX_TEXT_CHARS = 2_000  # of one text in an event
MAX_EVENT_BYTES = 16 * 1024  # of its content and metadata, as JSON
MAX_APPROVAL_BYTES = 64 * 1024  # of a call that waits: what is cut off cannot be judged
MAX_PATH = 8  # calls: deeper than delegations go
MAX_NUMBER = 10**10  # of a seq, and seconds since the epoch

_KEPT_METADATA = frozenset(
    {
        *("call_id", "step", "id", "tool", "agent", "context_id", "path", "child", "call"),
        *("usage", "finish_reason", "code", "error", "error_type", "reason", "resumes"),
        *("expires_at", "decision_id", "subject", "is_expired"),
        *("keeps", "from_seq", "attempt", "lost_tail"),
    }
)
ENDS_WAIT = frozenset(
    {
        *("approval_decided", "tool_result", "tool_error"),
        *("delegation_response", "delegation_error"),
    }
)
"""Events after which a call waits for nobody any more."""
_UNTOLD = frozenset({"offered", "text"})  # the caller gets the answer's text as an artifact
_APPROVALS = frozenset({"approval_requested", "approval_decided"})
_LIVE = frozenset({"tool_progress", "format_warning", "model_wait"})
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_CALL_ID = re.compile(r"[A-Za-z0-9_]{1,64}")


def record_event(record: Record) -> JSONObject | None:
    """Give the event of a record of the task's own run; None if callers are not told of it."""
    if record.event_type in _UNTOLD:
        return None
    content = "" if record.event_type == "model_reply" else record.content
    metadata = {k: v for k, v in record.metadata.items() if k in _KEPT_METADATA}
    if isinstance(child := metadata.get("child"), Mapping):
        metadata["child"] = {k: v for k, v in child.items() if k != "text"}
    return _event(record.event_type, (), content, metadata, (record.seq, record.timestamp))


def notice_event(notice: Notice) -> JSONObject | None:
    """Give the event of a notice: of a child's event or text, or of a tool's progress."""
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


def read_event(value: JSON) -> ChildEvent | None:
    """Read what the metadata of a status hold under the extension's URI; None if it is no event.

    Whole numbers may have become floats on their way.
    """
    event: Any = value.get("event") if isinstance(value, dict) else None
    kind = event.get("type") if isinstance(event, dict) else None
    if not (isinstance(kind, str) and _TYPE.fullmatch(kind)):
        return None
    path, content = event.get("path", []), event.get("content")
    metadata = event.get("metadata", {})
    if not (
        isinstance(path, list)
        and len(path) <= MAX_PATH
        and all(isinstance(c, str) and _CALL_ID.fullmatch(c) for c in path)
        and (content is None or isinstance(content, str | dict))
        and isinstance(metadata, dict)
        and event_size(content, metadata) <= _most_bytes(kind)
    ):
        return None
    seq, timestamp = _number(event.get("seq")), _number(event.get("timestamp"))
    content, metadata = with_integers(content), with_integers(metadata)
    return ChildEvent(kind, tuple(path), int(seq), timestamp, content, metadata)


def _event(
    kind: str,
    path: Any,  # noqa: ANN401 - a list or tuple of call ids
    content: JSON,
    metadata: Mapping[str, JSON],
    place: tuple[int, float] = (0, 0.0),
) -> JSONObject:
    seq, timestamp = place
    is_whole = kind in _APPROVALS and event_size(content, metadata) <= MAX_APPROVAL_BYTES
    about: dict[str, JSON] = {
        "type": kind,
        "path": list(path),
        "seq": seq,
        "timestamp": timestamp,
        "content": content if is_whole else _cut(content),
        "metadata": metadata if is_whole else _cut(metadata),
    }
    if not is_whole and _size(about) > MAX_EVENT_BYTES:  # many short texts
        about |= {"content": "… (too long to be told)", "metadata": _ids(metadata)}
    return {"event": about}


def _cut(value: JSON, depth: int = 8) -> JSON:
    """Cut each long text in a value, and what is nested deeply."""
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


def _ids(metadata: Mapping[str, JSON]) -> dict[str, JSON]:
    names = ("call_id", "step", "tool", "agent", "usage")
    return {name: metadata[name] for name in names if name in metadata}


def _most_bytes(kind: str) -> int:
    return MAX_APPROVAL_BYTES if kind in _APPROVALS else MAX_EVENT_BYTES


def event_size(content: object, metadata: object) -> int:
    """Give how large an event is, in bytes of JSON."""
    return _size(content) + _size(metadata)


def _size(value: object) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # nested too deeply, or numbers beyond 64 bits
        return MAX_APPROVAL_BYTES + 1


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if 0 <= value <= MAX_NUMBER else 0
