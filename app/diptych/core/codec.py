"""Encodes events as log records, and decodes them.

`EVENT_TYPES` is the one table of wire names (loop.md §9). A record's `content` and `metadata` are
public API (`/memory/events`): the meaning of a field never changes. An incompatible change needs a
new `FORMAT`, which the first record of each run names.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
    CallKind,
    ChildAnswered,
    ChildAsked,
    Compacted,
    Completed,
    ContextRefused,
    Event,
    Failed,
    FormatChanged,
    InputReceived,
    InputRequest,
    InputRequested,
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
    WaitKind,
)
from diptych.core.json_values import (
    AS_IT_IS,
    BUDGET,
    CALLER_TOOL,
    CHILD,
    MESSAGE,
    NATIVE_CALL,
    PARENT,
    PARTIAL_RESULT,
    TUPLE,
    USAGE,
    Form,
    Stored,
    Way,
    decode_catalog,
    decode_settings,
    encode_catalog,
    encode_prices,
    encode_settings,
    several,
)
from diptych.core.messages import JSON, Call, Delegation, Result, ToolCall
from diptych.core.reading import ActionError
from diptych.core.run_settings import RunSettings

FORMAT = 1
"""Version of the record format. Each release reads its own and the one before."""

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
    InputRequested: ("input_requested",),
    InputReceived: ("input_received",),
    ChildAsked: ("approval_requested", "input_requested"),
    ChildAnswered: ("approval_decided", "input_received"),
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
"""Logged, but left out of `/memory/events`."""

Row = tuple[str, JSON, dict[str, JSON]]
"""An event's wire name, content and metadata."""


PRIVATE = "private"
"""The metadata key for the contents of answers, and what tools need to continue a call."""


@dataclass(frozen=True, slots=True)
class Record:
    """One log record of a run. `timestamp` is in seconds since the epoch."""

    run_id: str
    session_id: str
    seq: int
    event_type: str
    timestamp: float
    content: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)


def shown(record: Record) -> Record:
    """Return the record as clients may see it: without private metadata."""
    if PRIVATE not in record.metadata:
        return record
    public = {key: value for key, value in record.metadata.items() if key != PRIVATE}
    return replace(record, metadata=public)


def is_terminal(record: Record) -> bool:
    """Whether this record ends its run."""
    return record.event_type in TERMINAL


def record_chars(record: Record) -> int:
    """Return a record's approximate size in characters: only text content can be large."""
    return len(record.content) if isinstance(record.content, str) else 0


def catalog_blob(
    catalog: Catalog, prompt: str, settings: RunSettings, native_prompt: str = ""
) -> tuple[Offered, bytes]:
    """Return the `Offered` event of a run, and the blob to store under its key."""
    terms = encode_settings(settings)
    content = {"offers": encode_catalog(catalog), "prompt": prompt, "terms": terms}
    if native_prompt:
        content["native_prompt"] = native_prompt
    blob = json.dumps(content, sort_keys=True).encode()  # orjson rejects some schemas
    key = hashlib.sha256(blob).hexdigest()
    return Offered(catalog, prompt, settings, key, native_prompt=native_prompt), blob


class _Plain(NamedTuple):
    """An event with one field as content and the others as metadata."""

    content: str | None
    form: Form[Any]
    way: Way = AS_IT_IS  # of the content


_ORIGIN = Form(
    Origin,
    *("path", "traceparent", "seconds", "cancels_on_disconnect", "parent"),
    *("deadline_pauses", "lease"),
    keys={"cancels_on_disconnect": "on_disconnect"},
    path=TUPLE,
    cancels_on_disconnect=Way(lambda _: "cancel", lambda stored: stored == "cancel"),
    parent=PARENT,
)
_REQUEST = Form(
    RunRequested,
    *("earlier", "system", "parts", "parameters", "max_steps", "output_schema", "resumes"),
    *("max_retries", "subject", "caller", "budget", "notes", "tools"),
    earlier=several(MESSAGE),
    parts=TUPLE,
    budget=BUDGET,
    tools=several(CALLER_TOOL),
)
_PLAIN: Mapping[type, _Plain] = {
    MessageQueued: _Plain(
        "message",
        Form(
            MessageQueued,
            *("message_id", "subject", "is_follow_up", "notes"),
            keys={"is_follow_up": "follow_up"},
        ),
    ),
    QueueCleared: _Plain("message_ids", Form(QueueCleared, "clear_id", "subject", "only"), TUPLE),
    OwnerChanged: _Plain(None, Form(OwnerChanged, "lost_tail", always=("lost_tail",))),
    FormatChanged: _Plain("action_format", Form(FormatChanged, "reason")),
    Replied: _Plain(
        "text",
        Form(
            Replied,
            *("usage", "finish_reason", "calls", "reasoning"),
            always=("usage", "finish_reason"),
            keys={"calls": "tool_calls"},
            usage=USAGE,
            calls=several(NATIVE_CALL),
        ),
    ),
    ContextRefused: _Plain(None, Form(ContextRefused, "max_tokens", "prompt_tokens")),
    Compacted: _Plain(
        "summary", Form(Compacted, "keeps", "usage", "error", always=("usage",), usage=USAGE)
    ),
    StepJudged: _Plain(
        "ends",
        Form(StepJudged, "step", "hook"),
        Way(lambda ends: "end" if ends else "go on", lambda content: content == "end"),
    ),
    AnswerJudged: _Plain("problem", Form(AnswerJudged, "hook")),
    Streamed: _Plain("text", Form(Streamed)),
    AnswerReset: _Plain(None, Form(AnswerReset, "from_seq", "attempt")),
    Answered: _Plain("text", Form(Answered, "finish_reason", "is_json", always=("finish_reason",))),
    Completed: _Plain(None, Form(Completed, "finish_reason", "usage", usage=USAGE)),
    StepsExhausted: _Plain(
        "text",
        Form(StepsExhausted, "results", "usage", results=several(PARTIAL_RESULT), usage=USAGE),
    ),
    Failed: _Plain("message", Form(Failed, "code", "text")),
    Aborted: _Plain("reason", Form(Aborted)),
}
_PLAIN_BY_NAME: Mapping[str, _Plain] = {
    EVENT_TYPES[kind][0]: plain for kind, plain in _PLAIN.items()
}
_DECIDED = Form(
    ApprovalDecided,
    *("call_id", "answer_id", "reason", "subject", "is_expired", "caller"),
    keys={"answer_id": "decision_id"},
)
INPUT = Form(InputRequest, "kind", "schema", "url")
_RECEIVED = Form(
    InputReceived,
    *("call_id", "answer_id", "seq", "subject", "caller", "is_expired"),
    keys={"answer_id": "input_id"},
)
_RESULT = Form(Result, "call_id", "value", "error", "finish_reason", "child", child=CHILD)


def encode(event: Event) -> Row:  # noqa: C901, PLR0912 - a table
    """Return an event's wire name, content and metadata. Raises `LoopError` if unknown."""
    if plain := _PLAIN.get(type(event)):
        content = None if plain.content is None else plain.way.write(getattr(event, plain.content))
        return EVENT_TYPES[type(event)][0], content, plain.form.write(event)
    match event:
        case RunRequested():
            about = {"format": FORMAT, **_REQUEST.write(event), **_ORIGIN.write(event.origin)}
            return "user_message", event.message, about
        case Offered():
            return "offered", event.key, _offered_metadata(event)
        case ReplyRejected(error, said):
            return "action_error", error.detail, {"error_type": error.type, "said": said}
        case Called():
            return _called_row(event)
        case Returned():
            return _returned_row(event)
        case CallJudged():
            return _call_judged_row(event)
        case ApprovalRequested(call, step, reason, expires_at):
            about = {**_call_metadata(call, step), "expires_at": expires_at}
            why: dict[str, JSON] = {"reason": reason} if reason else {}
            return "approval_requested", _call_content(call), about | why
        case ApprovalDecided():
            return "approval_decided", event.decision, _DECIDED.write(event) | _new_call(event.call)
        case InputRequested(call_id, request, expires_at, state):
            about = {"call_id": call_id, **INPUT.write(request), "expires_at": expires_at}
            return "input_requested", request.message, about | _private(state=state)
        case InputReceived(action=action, content=content):
            return "input_received", action, _RECEIVED.write(event) | _private(content=content)
        case ChildAsked(kind):
            return f"{kind}_requested", event.content, _child_asked_metadata(event)
        case ChildAnswered(kind, call_id, seq, answer, about):
            event_type = "approval_decided" if kind == "approval" else "input_received"
            return event_type, answer, {**about, **_path(call_id), "seq": seq}
        case _:
            raise LoopError(f"{type(event).__name__} has no record form")


def event_of(record: Record) -> Event:
    """Decode a record, except `offered`, which needs `decode`. Raises as `decode` does."""
    return decode(record.event_type, record.content, record.metadata)


def decode(  # noqa: C901, PLR0912 - a table
    event_type: str,
    content: Stored,
    metadata: Mapping[str, Any],
    kept: Callable[[str], bytes] | None = None,
) -> Event:
    """Decode an event; `kept` loads the blob stored under a hash.

    Raises `LoopError` for an unknown event or format; malformed records raise whatever `dict` and
    dataclasses raise.
    """
    match event_type:
        case "user_message" if "message_id" not in metadata:
            return _read_request(content, metadata)
        case "user_message":
            plain = _PLAIN[MessageQueued]
        case "offered" if kept:
            return _read_offered(content, _whole(content, kept(content)), metadata)
        case "action_error":
            return ReplyRejected(ActionError(metadata["error_type"], content), metadata["said"])
        case "tool_call" | "delegation_request":
            context_id = metadata["context_id"] if event_type == "delegation_request" else None
            budget = BUDGET.read(metadata.get("budget"))
            return Called(_read_call(content, metadata), metadata["step"], context_id, budget)
        case "tool_result" | "tool_error" | "delegation_response" | "delegation_error":
            kind: CallKind = "tool" if event_type.startswith("tool") else "agent"
            result = _RESULT.read(metadata, text=content)
            return Returned(result, kind, metadata[kind], metadata.get("hook", ""))
        case "call_judged":
            call, reason = _read_new_call(metadata), metadata.get("reason")
            return CallJudged(metadata["call_id"], call, reason, metadata.get("hook", ""))
        case "approval_requested" | "input_requested" if "path" in metadata:
            return _read_child_asked(_kind(event_type), content, metadata)
        case "approval_decided" | "input_received" if "path" in metadata:
            about = _without(metadata, "call_id", "path", "seq")
            call_id, seq = metadata["call_id"], metadata["seq"]
            return ChildAnswered(_kind(event_type), call_id, seq, content, about)
        case "approval_requested":
            call, reason = _read_call(content, metadata), metadata.get("reason", "")
            return ApprovalRequested(call, metadata["step"], reason, metadata["expires_at"])
        case "approval_decided":
            return _DECIDED.read(metadata, decision=content, call=_read_new_call(metadata))
        case "input_requested":
            request, private = INPUT.read(metadata, message=content), metadata.get(PRIVATE, {})
            expires_at, state = metadata["expires_at"], private.get("state")
            return InputRequested(metadata["call_id"], request, expires_at, state)
        case "input_received":
            private = metadata.get(PRIVATE, {})
            return _RECEIVED.read(metadata, action=content, content=private.get("content"))
        case _ if event_type in _PLAIN_BY_NAME:
            plain = _PLAIN_BY_NAME[event_type]
        case _:
            raise LoopError(
                f"the log contains the event {event_type!r}, which this version does not know"
            )
    read = {} if plain.content is None else {plain.content: plain.way.read(content)}
    found: Event = plain.form.read(metadata, **read)
    return found


def _read_request(message: str, metadata: Mapping[str, Any]) -> RunRequested:
    if metadata.get("format") != FORMAT:
        found = json.dumps(metadata.get("format"))
        raise LoopError(f"its record format is {found}; this version reads format {FORMAT}")
    return _REQUEST.read(metadata, message=message, origin=_ORIGIN.read(metadata))


def _whole(key: str, blob: bytes) -> bytes:
    """Return a blob whose hash matches its key, else raise `LoopError`."""
    if hashlib.sha256(blob).hexdigest() != key:
        raise LoopError("the stored catalog does not match the hash in the run's log")
    return blob


def _offered_metadata(event: Offered) -> dict[str, JSON]:
    """Return the fields that readers of the record need; the blob has the rest."""
    settings, window = event.settings, event.window
    about: dict[str, JSON] = {"nonce": event.nonce} if event.nonce else {}
    if settings.budget:
        about["budget"] = BUDGET.write(settings.budget)
    if settings.prices:
        about["prices"] = encode_prices(settings.prices)
    if event.action_format != "json":
        about["action_format"] = event.action_format
    if window.limit is not None:
        factor: dict[str, JSON] = {"factor": window.factor} if window.is_measured else {}
        about["context"] = {"max_tokens": window.limit, **factor}
    return about


def _read_offered(key: str, blob: bytes, metadata: Mapping[str, Any]) -> Offered:
    stored, context = json.loads(blob), metadata.get("context", {})
    factor = context.get("factor")
    return Offered(
        decode_catalog(stored["offers"]),
        stored["prompt"],
        decode_settings(stored["terms"]),
        key,
        metadata.get("nonce", ""),
        stored.get("native_prompt", ""),
        metadata.get("action_format", "json"),
        ContextWindow(context.get("max_tokens"), factor or 1.0, is_measured=factor is not None),
    )


def _call_content(call: Call) -> dict[str, JSON]:
    match call:
        case ToolCall(name=name, arguments=arguments):
            return {"tool": name, "arguments": arguments}
        case Delegation(agent=agent, task=task):
            return {"agent": agent, "task": task}


def _call_metadata(call: Call, step: int) -> dict[str, JSON]:
    return {"call_id": call.id, "step": step, **_labels(call)}


def _labels(call: Call) -> dict[str, JSON]:
    label: dict[str, JSON] = {} if call.label is None else {"id": call.label}
    return {**label, "after": list(call.after)} if call.after else label


def _new_call(call: Call | None) -> dict[str, JSON]:
    """Return the metadata of a replacement call."""
    return {} if call is None else {"call": _call_content(call), **_labels(call)}


def _read_new_call(metadata: Mapping[str, Any]) -> Call | None:
    return _read_call(metadata["call"], metadata) if "call" in metadata else None


def _read_call(content: Stored, metadata: Mapping[str, Any]) -> Call:
    call_id, label = metadata["call_id"], metadata.get("id")
    after = tuple(metadata.get("after", ()))
    if "tool" in content:
        return ToolCall(call_id, content["tool"], content["arguments"], label, after)
    return Delegation(call_id, content["agent"], content["task"], label, after)


def _called_row(event: Called) -> Row:
    content, about = _call_content(event.call), _call_metadata(event.call, event.step)
    if isinstance(event.call, ToolCall):
        return "tool_call", content, about
    if event.budget:
        about["budget"] = BUDGET.write(event.budget)
    return "delegation_request", content, {**about, "context_id": event.context_id}


def _returned_row(event: Returned) -> Row:
    result, has_failed = event.result, event.result.error is not None
    about = {"call_id": result.call_id, event.kind: event.target, **_RESULT.write(result)}
    if event.hook:
        about["hook"] = event.hook
    if event.kind == "tool":
        return "tool_error" if has_failed else "tool_result", result.text, about
    return "delegation_error" if has_failed else "delegation_response", result.text, about


def _call_judged_row(event: CallJudged) -> Row:
    about: dict[str, JSON] = {"call_id": event.call_id}
    if event.hook:
        about["hook"] = event.hook
    if event.denied is not None:
        return "call_judged", "deny", {**about, "reason": event.denied}
    return "call_judged", "rewrite" if event.call else "allow", about | _new_call(event.call)


def _private(**values: JSON) -> dict[str, JSON]:
    found: dict[str, JSON] = {name: value for name, value in values.items() if value is not None}
    return {PRIVATE: found} if found else {}


def _path(call_id: str) -> dict[str, JSON]:
    return {"call_id": call_id, "path": list(call_id.split("."))}


def _child_asked_metadata(event: ChildAsked) -> dict[str, JSON]:
    return {
        **event.about,
        **_path(event.call_id),
        "expires_at": event.expires_at,
        "agent": event.agent,
        "child": {"url": event.url, "task_id": event.task_id, "seq": event.seq},
    }


def _read_child_asked(kind: WaitKind, content: Stored, metadata: Mapping[str, Any]) -> ChildAsked:
    child = metadata["child"]
    return ChildAsked(
        kind,
        metadata["call_id"],
        content,
        _without(metadata, "call_id", "path", "expires_at", "agent", "child"),
        metadata["expires_at"],
        metadata["agent"],
        child["url"],
        child["task_id"],
        child["seq"],
    )


def _kind(event_type: str) -> WaitKind:
    return "approval" if event_type.startswith("approval") else "input"


def _without(metadata: Mapping[str, Any], *names: str) -> dict[str, JSON]:
    return {name: value for name, value in metadata.items() if name not in names}
