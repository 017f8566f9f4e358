"""Encodes events as records of the log, and decodes them again.

`EVENT_TYPES` is the one table of wire names (loop.md §9). `content` and `metadata` of a record are
part of the public API (`/memory/events`), and later versions must decode them: fields may be
added, and never change their meaning.

Not here: where records are stored (`adapters`), what they mean for a run (`reducer`).
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from diptych.errors import LoopError
from diptych.loop.actions import ActionError
from diptych.loop.catalog import Catalog
from diptych.loop.catalog_json import decode_catalog, encode_catalog
from diptych.loop.events import (
    Aborted,
    Answered,
    AnswerReset,
    Asked,
    Called,
    Completed,
    Event,
    Failed,
    LoopSettings,
    Offered,
    Origin,
    OwnerChanged,
    Replied,
    ReplyRejected,
    Returned,
    Steered,
    StepsExhausted,
    Streamed,
)
from diptych.loop.messages import JSON, Delegation, Message, Result, ToolCall, Usage

EVENT_TYPES: Mapping[type, tuple[str, ...]] = {
    Asked: ("user_message",),
    Steered: ("user_message",),
    Offered: ("offered",),
    OwnerChanged: ("owner_changed",),
    Replied: ("model_reply",),
    ReplyRejected: ("action_error",),
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
    {"offered", "owner_changed", "model_reply", "text", "answer_reset", "completed"}
)
"""Recorded, and left out of `/memory/events`."""

_Stored = Any
"""What a store gives back: JSON whose form follows from the event's type."""


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


def catalog_blob(catalog: Catalog, prompt: str, settings: LoopSettings) -> tuple[Offered, bytes]:
    """Give what a run is offered as an event, and as the bytes that are kept under its key."""
    content = {"offers": encode_catalog(catalog), "prompt": prompt, "terms": asdict(settings)}
    blob = json.dumps(content, sort_keys=True).encode()  # schemas may hold what orjson refuses
    return Offered(catalog, prompt, settings, hashlib.sha256(blob).hexdigest()), blob


def encode(event: Event) -> tuple[str, JSON, dict[str, JSON]]:  # noqa: C901 - a table
    """Give the event's wire name, content and metadata."""
    match event:
        case Asked():
            return "user_message", event.message, _about_asked(event)
        case Steered(message, message_id):
            return "user_message", message, {"message_id": message_id}
        case Offered(key=key):
            return "offered", key, {}
        case OwnerChanged(lost_tail):
            return "owner_changed", None, {"lost_tail": lost_tail}
        case Replied(text, usage, finish_reason):
            return "model_reply", text, {"usage": _usage(usage), "finish_reason": finish_reason}
        case ReplyRejected(error, said):
            return "action_error", error.detail, {"error_type": error.type, "said": said}
        case Called():
            return _called_row(event)
        case Returned():
            return _returned_row(event)
        case Streamed(text):
            return "text", text, {}
        case AnswerReset(from_seq, attempt):
            return "answer_reset", None, {"from_seq": from_seq, "attempt": attempt}
        case Answered(text, finish_reason):
            return "agent_response", text, {"finish_reason": finish_reason}
        case _:
            return _terminal_row(event)


def decode(
    event_type: str,
    content: _Stored,
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


def _read(  # noqa: C901 - a table
    event_type: str,
    content: _Stored,
    metadata: Mapping[str, Any],
    kept: Callable[[str], bytes],
) -> Event:
    match event_type:
        case "user_message" if "message_id" in metadata:
            return Steered(content, metadata["message_id"])
        case "user_message":
            return _read_asked(content, metadata)
        case "offered":
            return _read_offered(content, kept(content))
        case "owner_changed":
            return OwnerChanged(metadata["lost_tail"])
        case "model_reply":
            return Replied(content, _read_usage(metadata["usage"]), metadata["finish_reason"])
        case "action_error":
            return ReplyRejected(ActionError(metadata["error_type"], content), metadata["said"])
        case "tool_call" | "delegation_request":
            return _read_called(event_type, content, metadata)
        case "tool_result" | "tool_error" | "delegation_response" | "delegation_error":
            return _read_returned(event_type, content, metadata)
        case "text":
            return Streamed(content)
        case "answer_reset":
            return AnswerReset(metadata["from_seq"], metadata["attempt"])
        case "agent_response":
            return Answered(content, metadata["finish_reason"])
        case _:
            return _read_terminal(event_type, content, metadata)


def _about_asked(event: Asked) -> dict[str, JSON]:
    about: dict[str, JSON] = {}
    if event.earlier:
        about["earlier"] = [asdict(m) for m in event.earlier]
    if event.system:
        about["system"] = event.system
    origin = event.origin
    if origin.path:
        about["path"] = list(origin.path)
    if origin.traceparent:
        about["traceparent"] = origin.traceparent
    if origin.seconds is not None:
        about["seconds"] = origin.seconds
    if origin.cancels_on_disconnect:
        about["on_disconnect"] = "cancel"
    return about


def _read_asked(message: str, metadata: Mapping[str, Any]) -> Asked:
    earlier = tuple(Message(**m) for m in metadata.get("earlier", ()))
    origin = Origin(
        tuple(metadata.get("path", ())),
        metadata.get("traceparent"),
        metadata.get("seconds"),
        metadata.get("on_disconnect") == "cancel",
    )
    return Asked(message, earlier, metadata.get("system", ""), origin)


def _terminal_row(event: Event) -> tuple[str, JSON, dict[str, JSON]]:
    match event:
        case Completed(finish_reason, usage):
            return "completed", None, {"finish_reason": finish_reason, "usage": _usage(usage)}
        case StepsExhausted(text, results, usage):
            partial: list[JSON] = [
                {"call_id": r.call_id, "text": r.text, "error": r.error} for r in results
            ]
            return "max_steps", text, {"results": partial, "usage": _usage(usage)}
        case Failed(code, message):
            return "failed", message, {"code": code}
        case Aborted(reason):
            return "aborted", reason, {}
        case _:
            raise LoopError(f"{event} has no place in the record")


def _read_terminal(event_type: str, content: _Stored, metadata: Mapping[str, Any]) -> Event:
    match event_type:
        case "completed":
            return Completed(metadata["finish_reason"], _read_usage(metadata["usage"]))
        case "max_steps":
            results = tuple(
                Result(r["call_id"], r["text"], error=r["error"]) for r in metadata["results"]
            )
            return StepsExhausted(content, results, _read_usage(metadata["usage"]))
        case "failed":
            return Failed(metadata["code"], content)
        case "aborted":
            return Aborted(content)
        case _:
            raise LoopError(f"the log holds {event_type!r}, which this version does not know")


def _called_row(event: Called) -> tuple[str, JSON, dict[str, JSON]]:
    call = event.call
    about: dict[str, JSON] = {"call_id": call.id, "step": event.step}
    if call.label is not None:
        about["id"] = call.label
    if call.after:
        about["after"] = list(call.after)
    match call:
        case ToolCall(name=name, arguments=arguments):
            return "tool_call", {"tool": name, "arguments": arguments}, about
        case Delegation(agent=agent, task=task):
            about["context_id"] = event.context_id
            return "delegation_request", {"agent": agent, "task": task}, about


def _read_called(event_type: str, content: _Stored, metadata: Mapping[str, Any]) -> Called:
    label, after = metadata.get("id"), tuple(metadata.get("after", ()))
    if event_type == "tool_call":
        tool = ToolCall(metadata["call_id"], content["tool"], content["arguments"], label, after)
        return Called(tool, metadata["step"])
    task = Delegation(metadata["call_id"], content["agent"], content["task"], label, after)
    return Called(task, metadata["step"], metadata["context_id"])


def _returned_row(event: Returned) -> tuple[str, JSON, dict[str, JSON]]:
    result, failed = event.result, event.result.error is not None
    about: dict[str, JSON] = {"call_id": result.call_id, event.kind: event.target}
    if result.value is not None:
        about["value"] = result.value
    if failed:
        about["error"] = result.error
    if event.kind == "tool":
        return "tool_error" if failed else "tool_result", result.text, about
    return "delegation_error" if failed else "delegation_response", result.text, about


def _read_returned(event_type: str, content: _Stored, metadata: Mapping[str, Any]) -> Returned:
    error, value = metadata.get("error"), metadata.get("value")
    result = Result(metadata["call_id"], content, value, error)
    if event_type.startswith("tool"):
        return Returned(result, "tool", metadata["tool"])
    return Returned(result, "agent", metadata["agent"])


def _read_offered(key: str, blob: bytes) -> Offered:
    stored = json.loads(blob)
    return Offered(
        decode_catalog(stored["offers"]),
        stored["prompt"],
        LoopSettings(**stored["terms"]),
        key,
    )


def _usage(usage: Usage) -> dict[str, JSON]:
    return cast("dict[str, JSON]", asdict(usage))


def _read_usage(stored: Mapping[str, int]) -> Usage:
    return Usage(stored["prompt_tokens"], stored["completion_tokens"])
