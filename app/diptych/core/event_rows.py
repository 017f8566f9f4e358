"""The rows of single events: name on record, content and metadata, written and read."""

from collections.abc import Mapping
from typing import Any

from diptych.core.budget import decode_budget, encode_budget
from diptych.core.context_window import ContextWindow
from diptych.core.delegation_rows import (
    child_value,
    parent_value,
    read_child,
    read_parent,
    read_usage,
    usage_value,
)
from diptych.core.errors import LoopError
from diptych.core.events import (
    Aborted,
    Called,
    Compacted,
    Completed,
    ContextRefused,
    Event,
    Failed,
    Offered,
    Origin,
    Replied,
    Returned,
    RunRequested,
    StepsExhausted,
)
from diptych.core.message_json import decode_calls, decode_message, encode_calls, encode_message
from diptych.core.messages import JSON, Call, Delegation, Result, ToolCall
from diptych.core.run_settings import budget_terms

Stored = Any
"""What a store gives back: JSON whose form follows from the event's type."""


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
