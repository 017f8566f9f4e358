"""Encodes events as records of the log, and decodes them again.

`EVENT_TYPES` is the one table of wire names (loop.md §9). `content` and `metadata` of a record are
part of the public API (`/memory/events`), and later versions must decode them: fields may be
added, and never change their meaning.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diptych.core.approval_events import (
    ApprovalDecided,
    ApprovalRequested,
    ChildApprovalDecided,
    ChildApprovalRequested,
)
from diptych.core.approval_rows import (
    child_decided_row,
    child_requested_row,
    decided_row,
    read_decided,
    read_requested,
    requested_row,
)
from diptych.core.catalog import Catalog
from diptych.core.catalog_json import decode_catalog, encode_catalog
from diptych.core.errors import LoopError
from diptych.core.event_rows import (
    Stored,
    called_row,
    context_row,
    offered_metadata,
    read_called,
    read_context,
    read_offered_window,
    read_reply,
    read_request_row,
    read_returned,
    read_terminal,
    reply_metadata,
    request_metadata,
    returned_row,
    terminal_row,
)
from diptych.core.events import (
    Aborted,
    Answered,
    AnswerReset,
    Called,
    Compacted,
    Completed,
    ContextRefused,
    Event,
    Failed,
    FormatChanged,
    Offered,
    OwnerChanged,
    Replied,
    ReplyRejected,
    Returned,
    RunRequested,
    StepsExhausted,
    Streamed,
)
from diptych.core.hook_events import AnswerJudged, CallJudged, StepJudged
from diptych.core.hook_rows import judged_row, read_judged
from diptych.core.messages import JSON
from diptych.core.queue_events import MessageQueued, QueueCleared
from diptych.core.queue_rows import queue_row, read_cleared, read_steered
from diptych.core.reading import ActionError
from diptych.core.run_settings import RunSettings, decode_settings, encode_settings

EVENT_TYPES: Mapping[type, tuple[str, ...]] = {
    RunRequested: ("user_message",),
    MessageQueued: ("user_message",),
    QueueCleared: ("queue_cleared",),
    Offered: ("offered",),
    OwnerChanged: ("owner_changed",),
    FormatChanged: ("action_format",),
    Replied: ("model_reply",),
    ContextRefused: ("context_refused",),
    Compacted: ("compacted",),
    ReplyRejected: ("action_error",),
    ApprovalRequested: ("approval_requested",),
    CallJudged: ("call_judged",),
    StepJudged: ("step_judged",),
    AnswerJudged: ("answer_judged",),
    ApprovalDecided: ("approval_decided",),
    ChildApprovalRequested: ("approval_requested",),
    ChildApprovalDecided: ("approval_decided",),
    Called: ("tool_call", "delegation_request"),
    Returned: ("tool_result", "tool_error", "delegation_response", "delegation_error"),
    Streamed: ("text",),
    AnswerReset: ("answer_reset",),
    Answered: ("agent_response",),
    Completed: ("completed",),
    Failed: ("failed",),
    Aborted: ("aborted",),
    StepsExhausted: ("max_steps",),
}
TERMINAL = frozenset({"completed", "failed", "aborted", "max_steps"})
NOT_IN_MEMORY_VIEW = frozenset(
    {
        "offered",
        "owner_changed",
        "action_format",
        "model_reply",
        "context_refused",
        "call_judged",
        "step_judged",
        "answer_judged",
        "text",
        "answer_reset",
        "completed",
    }
)
"""Recorded, and left out of `/memory/events`."""


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded fact of a run. `timestamp` is in seconds since the epoch."""

    run_id: str
    session_id: str
    seq: int
    event_type: str
    timestamp: float
    content: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)


def is_terminal(record: Record) -> bool:
    """Whether a run has nothing after this record."""
    return record.event_type in TERMINAL


def record_chars(record: Record) -> int:
    """The size of a record in characters, roughly: only its text can be large."""
    return len(record.content) if isinstance(record.content, str) else 0


def catalog_blob(
    catalog: Catalog, prompt: str, settings: RunSettings, native_prompt: str = ""
) -> tuple[Offered, bytes]:
    """Give what a run is offered as an event, and as the bytes that are kept under its key."""
    terms = encode_settings(settings)
    content = {"offers": encode_catalog(catalog), "prompt": prompt, "terms": terms}
    if native_prompt:
        content["native_prompt"] = native_prompt
    blob = json.dumps(content, sort_keys=True).encode()  # schemas may hold what orjson refuses
    key = hashlib.sha256(blob).hexdigest()
    return Offered(catalog, prompt, settings, key, native_prompt=native_prompt), blob


def encode(  # noqa: C901, PLR0912 - a table
    event: Event,
) -> tuple[str, JSON, dict[str, JSON]]:
    """Give the event's wire name, content and metadata."""
    match event:
        case RunRequested():
            return "user_message", event.message, request_metadata(event)
        case MessageQueued() | QueueCleared():
            return queue_row(event)
        case Offered(key=key):
            return "offered", key, offered_metadata(event)
        case FormatChanged(action_format, reason):
            return "action_format", action_format, {"reason": reason}
        case OwnerChanged(lost_tail):
            return "owner_changed", None, {"lost_tail": lost_tail}
        case Replied():
            return "model_reply", event.text, reply_metadata(event)
        case ContextRefused() | Compacted():
            return context_row(event)
        case ReplyRejected(error, said):
            return "action_error", error.detail, {"error_type": error.type, "said": said}
        case ApprovalRequested():
            return requested_row(event)
        case ApprovalDecided():
            return decided_row(event)
        case ChildApprovalRequested():
            return child_requested_row(event)
        case ChildApprovalDecided():
            return child_decided_row(event)
        case CallJudged() | StepJudged() | AnswerJudged():
            return judged_row(event)
        case Called():
            return called_row(event)
        case Returned():
            return returned_row(event)
        case Streamed(text):
            return "text", text, {}
        case AnswerReset(from_seq, attempt):
            return "answer_reset", None, {"from_seq": from_seq, "attempt": attempt}
        case Answered(text, finish_reason, is_json):
            form: dict[str, JSON] = {"is_json": True} if is_json else {}
            return "agent_response", text, {"finish_reason": finish_reason, **form}
        case _:
            return terminal_row(event)


def decode(
    event_type: str,
    content: Stored,
    metadata: Mapping[str, Any],
    kept: Callable[[str], bytes],
) -> Event:
    """Read an event back; `kept` gives what was stored under a hash.

    Raises `LoopError` for a name that this version does not know, of an event or in its metadata:
    a newer one wrote the log, and only such a one knows what it means.
    """
    event = _read(event_type, content, metadata, kept)
    if unknown := metadata.keys() - encode(event)[2].keys():
        name = f"{event_type}.{min(unknown)}"
        raise LoopError(f"the log holds {name!r}, which this version does not know")
    return event


def _read(  # noqa: C901, PLR0912 - a table
    event_type: str,
    content: Stored,
    metadata: Mapping[str, Any],
    kept: Callable[[str], bytes],
) -> Event:
    match event_type:
        case "user_message" if "message_id" in metadata:
            return read_steered(content, metadata)
        case "queue_cleared":
            return read_cleared(content, metadata)
        case "user_message":
            return read_request_row(content, metadata)
        case "offered":
            return _read_offered(content, _whole(content, kept(content)), metadata)
        case "action_format":
            return FormatChanged(content, metadata["reason"])
        case "owner_changed":
            return OwnerChanged(metadata["lost_tail"])
        case "model_reply":
            return read_reply(content, metadata)
        case "context_refused" | "compacted":
            return read_context(event_type, content, metadata)
        case "action_error":
            return ReplyRejected(ActionError(metadata["error_type"], content), metadata["said"])
        case "approval_requested":
            return read_requested(content, metadata)
        case "approval_decided":
            return read_decided(content, metadata)
        case "call_judged" | "step_judged" | "answer_judged":
            return read_judged(event_type, content, metadata)
        case "tool_call" | "delegation_request":
            return read_called(event_type, content, metadata)
        case "tool_result" | "tool_error" | "delegation_response" | "delegation_error":
            return read_returned(event_type, content, metadata)
        case "text":
            return Streamed(content)
        case "answer_reset":
            return AnswerReset(metadata["from_seq"], metadata["attempt"])
        case "agent_response":
            return Answered(content, metadata["finish_reason"], metadata.get("is_json", False))
        case _:
            return read_terminal(event_type, content, metadata)


def _whole(key: str, blob: bytes) -> bytes:
    """Give a blob if it is the one that was kept under its key. Raises `LoopError`."""
    if hashlib.sha256(blob).hexdigest() != key:
        raise LoopError("what the run was offered is not what is kept of it")
    return blob


def _read_offered(key: str, blob: bytes, metadata: Mapping[str, Any]) -> Offered:
    stored = json.loads(blob)
    return Offered(
        decode_catalog(stored["offers"]),
        stored["prompt"],
        decode_settings(stored["terms"]),
        key,
        metadata.get("nonce", ""),
        stored.get("native_prompt", ""),
        metadata.get("action_format", "json"),
        read_offered_window(metadata),
    )
