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

from diptych.core.budget import decode_budget, encode_budget
from diptych.core.catalog import Catalog
from diptych.core.context_window import ContextWindow
from diptych.core.errors import LoopError
from diptych.core.events import (
    Aborted,
    Answered,
    AnswerJudged,
    AnswerReset,
    ApprovalDecided,
    ApprovalRequested,
    Called,
    CallJudged,
    ChildApprovalDecided,
    ChildApprovalRequested,
    Compacted,
    Completed,
    ContextRefused,
    Event,
    Failed,
    FormatChanged,
    HookEvent,
    MessageQueued,
    Offered,
    Origin,
    OwnerChanged,
    QueueCleared,
    Replied,
    ReplyRejected,
    Returned,
    RunRequested,
    StepJudged,
    StepsExhausted,
    Streamed,
    approval_id,
)
from diptych.core.json_values import (
    child_value,
    decode_calls,
    decode_catalog,
    decode_message,
    encode_calls,
    encode_catalog,
    encode_message,
    parent_value,
    read_child,
    read_parent,
    read_usage,
    usage_value,
)
from diptych.core.messages import JSON, Call, Delegation, Result, ToolCall
from diptych.core.reading import ActionError
from diptych.core.run_settings import RunSettings, budget_terms, decode_settings, encode_settings

Stored = Any
"""What a store gives back: JSON whose form follows from the event's type."""

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


def request_metadata(event: RunRequested) -> dict[str, JSON]:
    """What a record of the caller's message says beside its text; defaults are left out."""
    origin = event.origin
    about: dict[str, JSON] = {
        "earlier": [encode_message(m) for m in event.earlier],
        "system": event.system,
        "path": list(origin.path),
        "traceparent": origin.traceparent,
        "seconds": origin.seconds,
        "on_disconnect": "cancel" if origin.cancels_on_disconnect else None,
        "parent": parent_value(origin.parent),
        "deadline_pauses": origin.deadline_pauses or None,
        "lease": origin.lease,
        "parts": list(event.parts),
        "parameters": event.parameters,
        "max_steps": event.max_steps,
        "output_schema": event.output_schema,
        "resumes": event.resumes,
        "subject": event.subject,
        "caller": event.caller,
        "budget": encode_budget(event.budget) or None,
        "notes": event.notes or None,
    }
    unset: tuple[JSON, ...] = (None, "", [])  # `{}` is a schema, and 0.0 are seconds
    given = {name: value for name, value in about.items() if value not in unset}
    return given if event.parameters else {k: v for k, v in given.items() if k != "parameters"}


def read_request_row(message: str, metadata: Mapping[str, Any]) -> RunRequested:
    """Read the caller's message back."""
    return RunRequested(
        message,
        tuple(decode_message(m) for m in metadata.get("earlier", ())),
        metadata.get("system", ""),
        Origin(
            tuple(metadata.get("path", ())),
            metadata.get("traceparent"),
            metadata.get("seconds"),
            metadata.get("on_disconnect") == "cancel",
            read_parent(metadata.get("parent")),
            metadata.get("deadline_pauses", False),
            metadata.get("lease"),
        ),
        tuple(metadata.get("parts", ())),
        metadata.get("parameters", {}),
        metadata.get("max_steps"),
        metadata.get("output_schema"),
        metadata.get("resumes"),
        metadata.get("subject", ""),
        metadata.get("caller", ""),
        decode_budget(metadata.get("budget", {})),
        metadata.get("notes", {}),
    )


def offered_metadata(event: Offered) -> dict[str, JSON]:
    """What a record of the offers says beside their key; defaults are left out.

    Budget and prices are part of the settings; here is what readers of the record need of them.
    """
    about: dict[str, JSON] = {"nonce": event.nonce} if event.nonce else {}
    about |= budget_terms(event.settings)
    if event.action_format != "json":
        about["action_format"] = event.action_format
    window = event.window
    if window.limit is not None:
        about["context"] = {"max_tokens": window.limit}
        if window.is_measured:
            about["context"] = {"max_tokens": window.limit, "factor": window.factor}
    return about


def read_offered_window(metadata: Mapping[str, Any]) -> ContextWindow:
    """Read back what a run's start says of the model's context window."""
    stored = metadata.get("context", {})
    factor = stored.get("factor")
    return ContextWindow(stored.get("max_tokens"), factor or 1.0, is_measured=factor is not None)


def context_row(event: ContextRefused | Compacted) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a refusal as too long, or of a summary."""
    if isinstance(event, ContextRefused):
        told = {"max_tokens": event.max_tokens, "prompt_tokens": event.prompt_tokens}
        return "context_refused", None, {name: n for name, n in told.items() if n is not None}
    about: dict[str, JSON] = {"keeps": event.keeps, "usage": usage_value(event.usage)}
    if event.error is not None:
        about["error"] = event.error
    return "compacted", event.summary, about


def read_context(event_type: str, content: Stored, metadata: Mapping[str, Any]) -> Event:
    """Read such a row back."""
    if event_type == "context_refused":
        return ContextRefused(metadata.get("max_tokens"), metadata.get("prompt_tokens"))
    usage = read_usage(metadata["usage"])
    return Compacted(content, metadata["keeps"], usage, metadata.get("error"))


def reply_metadata(event: Replied) -> dict[str, JSON]:
    """What a record of a reply says beside its text."""
    about: dict[str, JSON] = {
        "usage": usage_value(event.usage),
        "finish_reason": event.finish_reason,
    }
    if event.calls:
        about["tool_calls"] = encode_calls(event.calls)
    if event.reasoning:
        about["reasoning"] = event.reasoning
    return about


def read_reply(text: str, metadata: Mapping[str, Any]) -> Replied:
    """Read a reply back."""
    usage, calls = read_usage(metadata["usage"]), decode_calls(metadata.get("tool_calls", ()))
    reasoning = metadata.get("reasoning", "")
    return Replied(text, usage, metadata["finish_reason"], calls, reasoning)


def terminal_row(event: Event) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a run's end. Raises `LoopError` for any other event."""
    match event:
        case Completed(finish_reason, usage):
            return "completed", None, {"finish_reason": finish_reason, "usage": usage_value(usage)}
        case StepsExhausted(text, results, usage):
            partial: list[JSON] = [
                {"call_id": r.call_id, "text": r.text, "error": r.error} for r in results
            ]
            return "max_steps", text, {"results": partial, "usage": usage_value(usage)}
        case Failed(code, message, text):
            return "failed", message, {"code": code, **({"text": text} if text else {})}
        case Aborted(reason):
            return "aborted", reason, {}
        case _:
            raise LoopError(f"{event} has no place in the record")


def read_terminal(event_type: str, content: Stored, metadata: Mapping[str, Any]) -> Event:
    """Read a run's end back. Raises `LoopError` for a name that this version does not know."""
    match event_type:
        case "completed":
            return Completed(metadata["finish_reason"], read_usage(metadata["usage"]))
        case "max_steps":
            results = tuple(
                Result(r["call_id"], r["text"], error=r["error"]) for r in metadata["results"]
            )
            return StepsExhausted(content, results, read_usage(metadata["usage"]))
        case "failed":
            return Failed(metadata["code"], content, metadata.get("text", ""))
        case "aborted":
            return Aborted(content)
        case _:
            raise LoopError(f"the log holds {event_type!r}, which this version does not know")


def call_content(call: Call) -> dict[str, JSON]:
    """What of a call stands in the content of its record."""
    match call:
        case ToolCall(name=name, arguments=arguments):
            return {"tool": name, "arguments": arguments}
        case Delegation(agent=agent, task=task):
            return {"agent": agent, "task": task}


def call_metadata(call: Call, step: int) -> dict[str, JSON]:
    """What of a call stands beside it; defaults are left out."""
    about: dict[str, JSON] = {"call_id": call.id, "step": step}
    if call.label is not None:
        about["id"] = call.label
    if call.after:
        about["after"] = list(call.after)
    return about


def read_call(content: Stored, metadata: Mapping[str, Any]) -> Call:
    """Read a call back from what stands in and beside the content of a record."""
    call_id, label = metadata["call_id"], metadata.get("id")
    after = tuple(metadata.get("after", ()))
    if "tool" in content:
        return ToolCall(call_id, content["tool"], content["arguments"], label, after)
    return Delegation(call_id, content["agent"], content["task"], label, after)


def called_row(event: Called) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a call that is about to be sent."""
    content, about = call_content(event.call), call_metadata(event.call, event.step)
    if isinstance(event.call, ToolCall):
        return "tool_call", content, about
    if event.budget:
        about["budget"] = encode_budget(event.budget)
    return "delegation_request", content, {**about, "context_id": event.context_id}


def read_called(event_type: str, content: Stored, metadata: Mapping[str, Any]) -> Called:
    """Read such a call back."""
    context_id = metadata["context_id"] if event_type == "delegation_request" else None
    budget = decode_budget(metadata.get("budget", {}))
    return Called(read_call(content, metadata), metadata["step"], context_id, budget)


def returned_row(event: Returned) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a call's result."""
    result, failed = event.result, event.result.error is not None
    about: dict[str, JSON] = {"call_id": result.call_id, event.kind: event.target}
    if result.value is not None:
        about["value"] = result.value
    if failed:
        about["error"] = result.error
    if result.finish_reason != "stop":
        about["finish_reason"] = result.finish_reason
    if result.child is not None:
        about["child"] = child_value(result.child)
    if event.hook:
        about["hook"] = event.hook
    if event.kind == "tool":
        return "tool_error" if failed else "tool_result", result.text, about
    return "delegation_error" if failed else "delegation_response", result.text, about


def read_returned(event_type: str, content: Stored, metadata: Mapping[str, Any]) -> Returned:
    """Read a result back."""
    error, value = metadata.get("error"), metadata.get("value")
    reason = metadata.get("finish_reason", "stop")
    child = read_child(metadata.get("child"))
    result = Result(metadata["call_id"], content, value, error, reason, child)
    if event_type.startswith("tool"):
        return Returned(result, "tool", metadata["tool"], metadata.get("hook", ""))
    return Returned(result, "agent", metadata["agent"], metadata.get("hook", ""))


def child_requested_row(event: ChildApprovalRequested) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a call below that waits for a decision."""
    about: dict[str, JSON] = {
        "call_id": approval_id(event.path),
        "path": list(event.path),
        "step": event.step,
        "expires_at": event.expires_at,
        "agent": event.agent,
        "child": {"url": event.url, "task_id": event.task_id},
    }
    if event.reason:
        about["reason"] = event.reason
    return "approval_requested", event.content, about


def child_decided_row(event: ChildApprovalDecided) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of what was decided on such a call."""
    about: dict[str, JSON] = {"call_id": approval_id(event.path), "path": list(event.path)}
    given: dict[str, JSON] = {
        "decision_id": event.decision_id,
        "reason": event.reason,
        "call": event.content,
        "subject": event.subject,
        "is_expired": event.is_expired,
    }
    return "approval_decided", event.decision, about | {k: v for k, v in given.items() if v}


def _read_child_requested(content: Stored, metadata: Mapping[str, Any]) -> ChildApprovalRequested:
    child = metadata["child"]
    return ChildApprovalRequested(
        tuple(metadata["path"]),
        content,
        metadata["step"],
        metadata.get("reason", ""),
        metadata["expires_at"],
        metadata["agent"],
        child["url"],
        child["task_id"],
    )


def _read_child_decided(content: Stored, metadata: Mapping[str, Any]) -> ChildApprovalDecided:
    return ChildApprovalDecided(
        tuple(metadata["path"]),
        content,
        metadata.get("decision_id", ""),
        metadata.get("reason", ""),
        metadata.get("call"),
        metadata.get("subject", ""),
        metadata.get("is_expired", False),
    )


def requested_row(event: ApprovalRequested) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a call that waits for a decision."""
    about = {**call_metadata(event.call, event.step), "expires_at": event.expires_at}
    if event.reason:
        about["reason"] = event.reason
    return "approval_requested", call_content(event.call), about


def read_requested(
    content: Stored, metadata: Mapping[str, Any]
) -> ApprovalRequested | ChildApprovalRequested:
    """Read such a row back."""
    if "path" in metadata:
        return _read_child_requested(content, metadata)
    call = read_call(content, metadata)
    reason = metadata.get("reason", "")
    return ApprovalRequested(call, metadata["step"], reason, metadata["expires_at"])


def decided_row(event: ApprovalDecided) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a decision; with a call that is changed, the whole of it."""
    about: dict[str, JSON] = {"call_id": event.call_id, "decision_id": event.decision_id}
    given: dict[str, JSON] = {
        "reason": event.reason,
        "subject": event.subject,
        "is_expired": event.is_expired,
        "caller": event.caller,
    }
    about |= {name: value for name, value in given.items() if value}
    if event.call:
        labels = call_metadata(event.call, 0)
        about["call"] = call_content(event.call)
        about |= {name: labels[name] for name in ("id", "after") if name in labels}
    return "approval_decided", event.decision, about


def read_decided(
    content: Stored, metadata: Mapping[str, Any]
) -> ApprovalDecided | ChildApprovalDecided:
    """Read such a row back."""
    if "path" in metadata:
        return _read_child_decided(content, metadata)
    call = metadata.get("call")
    return ApprovalDecided(
        metadata["call_id"],
        content,
        metadata["decision_id"],
        metadata.get("reason", ""),
        read_call(call, metadata) if call else None,
        metadata.get("subject", ""),
        metadata.get("is_expired", False),
        metadata.get("caller", ""),
    )


def queue_row(event: MessageQueued | QueueCleared) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a message, or of the ids of those that were cleared; defaults are left out."""
    about: dict[str, JSON] = {"subject": event.subject} if event.subject else {}
    if isinstance(event, QueueCleared):
        return "queue_cleared", list(event.message_ids), {"clear_id": event.clear_id, **about}
    if event.is_follow_up:
        about["follow_up"] = True
    if event.notes:
        about["notes"] = dict(event.notes)
    return "user_message", event.message, {"message_id": event.message_id, **about}


def read_steered(content: Stored, metadata: Mapping[str, Any]) -> MessageQueued:
    """Read the row of a message back."""
    subject, is_follow_up = metadata.get("subject", ""), metadata.get("follow_up", False)
    notes = metadata.get("notes", {})
    return MessageQueued(content, metadata["message_id"], subject, is_follow_up, notes)


def read_cleared(content: Stored, metadata: Mapping[str, Any]) -> QueueCleared:
    """Read the row of what was cleared back."""
    return QueueCleared(metadata["clear_id"], tuple(content), metadata.get("subject", ""))


def judged_row(event: HookEvent) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of what hooks said; defaults are left out."""
    by: dict[str, JSON] = {"hook": event.hook} if event.hook else {}
    match event:
        case StepJudged(step, ends):
            return "step_judged", "end" if ends else "go on", {"step": step, **by}
        case AnswerJudged(problem):
            return "answer_judged", problem, by
        case CallJudged(call_id, call, denied):
            about: dict[str, JSON] = {"call_id": call_id, **by}
            if denied is not None:
                return "call_judged", "deny", {**about, "reason": denied}
            if call is None:
                return "call_judged", "allow", about
            labels = call_metadata(call, 0)
            about["call"] = call_content(call)
            about |= {name: labels[name] for name in ("id", "after") if name in labels}
            return "call_judged", "rewrite", about


def read_judged(event_type: str, content: Stored, metadata: Mapping[str, Any]) -> HookEvent:
    """Read such a row back."""
    hook = metadata.get("hook", "")
    if event_type == "step_judged":
        return StepJudged(metadata["step"], content == "end", hook)
    if event_type == "answer_judged":
        return AnswerJudged(content, hook)
    stored = metadata.get("call")
    call = read_call(stored, metadata) if stored else None
    return CallJudged(metadata["call_id"], call, metadata.get("reason"), hook)
