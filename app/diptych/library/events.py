"""The typed events of a run, as `Agent.stream` yields them and results keep them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from diptych.core.codec import TERMINAL, Record
from diptych.core.json_values import read_usage
from diptych.core.messages import JSON, FinishReason, Usage
from diptych.core.reading.references import reference_value
from diptych.library.frozen import frozen
from diptych.ports import Item, Notice
from diptych.runs.model_caller import MODEL_WAIT, TURN_START
from diptych.runs.run_log import PROGRESS

RunStatus: TypeAlias = Literal["completed", "max_steps", "failed", "aborted"]


@dataclass(frozen=True, slots=True)
class RunStartEvent:
    """The run is logged. `steer`, `cancel`, `decide` and others take its id."""

    run_id: str
    session_id: str
    type: Literal["run_start"] = field(default="run_start", init=False)


@dataclass(frozen=True, slots=True)
class TurnStartEvent:
    """The model is asked. A turn is one request to it, with the calls that its reply makes.

    `number` counts from 1.
    """

    number: int
    type: Literal["turn_start"] = field(default="turn_start", init=False)


@dataclass(frozen=True, slots=True)
class TurnEndEvent:
    """The model has replied, and all calls of the turn have their results."""

    number: int
    type: Literal["turn_end"] = field(default="turn_end", init=False)


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A piece of the answer."""

    text: str
    type: Literal["text"] = field(default="text", init=False)


@dataclass(frozen=True, slots=True)
class TextResetEvent:
    """The answer begins anew: its text so far is void."""

    type: Literal["text_reset"] = field(default="text_reset", init=False)


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """A whole answer. A run that was sent follow-ups has several."""

    text: str
    finish_reason: FinishReason
    type: Literal["answer"] = field(default="answer", init=False)


@dataclass(frozen=True, slots=True)
class ReasoningEvent:
    """A piece of the model's reasoning; it is not recorded."""

    text: str
    type: Literal["reasoning"] = field(default="reasoning", init=False)


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A tool is called."""

    call_id: str
    tool: str
    arguments: Mapping[str, JSON]
    step: int
    type: Literal["tool_call"] = field(default="tool_call", init=False)


@dataclass(frozen=True, slots=True)
class ToolProgressEvent:
    """Progress of a running tool; not recorded."""

    call_id: str
    tool: str
    text: str
    type: Literal["tool_progress"] = field(default="tool_progress", init=False)


@dataclass(frozen=True, slots=True)
class ToolResultEvent:
    """A call's result: its text, its structured value if it has one, the kind of its error."""

    call_id: str
    tool: str
    text: str
    value: JSON = None
    error: str | None = None
    type: Literal["tool_result"] = field(default="tool_result", init=False)


@dataclass(frozen=True, slots=True)
class DelegationEvent:
    """A task is delegated to another agent."""

    call_id: str
    agent: str
    task: str
    step: int
    type: Literal["delegation"] = field(default="delegation", init=False)


@dataclass(frozen=True, slots=True)
class SubAgentEvent:
    """An event of a sub-agent.

    `path` holds the calls that lead to it: a delegation of this run first.
    """

    path: tuple[str, ...]
    event: "Event"
    type: Literal["sub_agent"] = field(default="sub_agent", init=False)


@dataclass(frozen=True, slots=True)
class DelegationResultEvent:
    """Another agent's answer, or the kind of its error with a text."""

    call_id: str
    agent: str
    text: str
    value: JSON = None
    error: str | None = None
    type: Literal["delegation_result"] = field(default="delegation_result", init=False)


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that waits for a decision until `expires_at`, in seconds since the epoch.

    `tool` is None for a delegation to `agent`, whose one argument is its `task`. The `call_id` of a
    call below this run is the path to it, joined by dots.
    """

    call_id: str
    tool: str | None
    agent: str | None
    arguments: Mapping[str, JSON]
    reason: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class ApprovalRequestEvent:
    """A call waits for a decision."""

    approval: Approval
    type: Literal["approval_request"] = field(default="approval_request", init=False)


@dataclass(frozen=True, slots=True)
class ApprovalDecisionEvent:
    """A call waits no more; `decision` is "closed" if nobody decided."""

    call_id: str
    decision: str
    reason: str = ""
    type: Literal["approval_decision"] = field(default="approval_decision", init=False)


@dataclass(frozen=True, slots=True)
class InputRequestEvent:
    """A call asks a person until `expires_at`, in seconds since the epoch; see `Agent.answer`.

    A `form` has the JSON `schema` of its values; `url` and `sign_in` have a page to visit. The
    `call_id` of a call below this run is the path to it, joined by dots.
    """

    call_id: str
    kind: Literal["form", "url", "sign_in", "caller_tool"]
    message: str
    schema: Mapping[str, JSON] | None
    url: str
    expires_at: float
    type: Literal["input_request"] = field(default="input_request", init=False)


@dataclass(frozen=True, slots=True)
class InputAnswerEvent:
    """The end of a question: `action` is accept, decline, cancel, or closed if its run ended."""

    call_id: str
    action: str
    type: Literal["input_answer"] = field(default="input_answer", init=False)


@dataclass(frozen=True, slots=True)
class WaitEvent:
    """The model is slow, or the request is retried; not recorded."""

    message: str
    type: Literal["wait"] = field(default="wait", init=False)


@dataclass(frozen=True, slots=True)
class RunEndEvent:
    """The run has ended. `code` says why it has no answer; `text` is the reason in words."""

    status: RunStatus
    code: str
    text: str
    usage: Usage
    type: Literal["run_end"] = field(default="run_end", init=False)


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """Any other record or notice, by the name that `/v1/runs/{id}/events` gives it."""

    name: str
    content: JSON
    metadata: Mapping[str, JSON]
    type: Literal["other"] = field(default="other", init=False)


Event: TypeAlias = (
    RunStartEvent
    | TurnStartEvent
    | TurnEndEvent
    | TextEvent
    | TextResetEvent
    | AnswerEvent
    | ReasoningEvent
    | ToolCallEvent
    | ToolProgressEvent
    | ToolResultEvent
    | DelegationEvent
    | SubAgentEvent
    | DelegationResultEvent
    | ApprovalRequestEvent
    | ApprovalDecisionEvent
    | InputRequestEvent
    | InputAnswerEvent
    | WaitEvent
    | RunEndEvent
    | OtherEvent
)


class EventReader:
    """Makes typed events of a run's items, in their order.

    Turns come from notices, which may be ahead of the records. A slow reader may miss them, and
    replays lack them: then the first record of its reply begins the turn.
    """

    def __init__(self) -> None:
        self._number = 0  # of the newest turn
        self._is_open = False
        self._replies = 0

    def read(self, items: Iterable[Item]) -> Iterator[Event]:
        for item in items:
            if isinstance(item, Notice):
                yield from self._of_notice(item)
            else:
                yield from self._of_record(item)

    def _of_notice(self, notice: Notice) -> Iterator[Event]:
        if notice.type == TURN_START:
            yield from self._begin_turn()
        elif notice.type != PROGRESS:  # the call's own event follows
            yield _live_event(notice)

    def _of_record(self, record: Record) -> Iterator[Event]:
        kind = record.event_type
        if kind in TERMINAL:
            yield from self._end_turn()
        elif kind in {"model_reply", "text"} and self._replies == self._number:
            yield from self._begin_turn()
        self._replies += kind == "model_reply"
        yield recorded_event(record)

    def _begin_turn(self) -> Iterator[Event]:
        yield from self._end_turn()
        self._number, self._is_open = self._number + 1, True
        yield TurnStartEvent(self._number)

    def _end_turn(self) -> Iterator[Event]:
        if self._is_open:
            self._is_open = False
            yield TurnEndEvent(self._number)


def recorded_event(record: Record) -> Event:
    """Return the event of a record."""
    about: Any = record.metadata
    if record.event_type == "user_message" and record.seq == 1:
        return RunStartEvent(record.run_id, record.session_id)
    return _event(record.event_type, record.content, about)


def _event(kind: str, content: Any, about: Any) -> Event:  # noqa: ANN401, C901, PLR0912 - a table
    match kind:
        case "text":
            return TextEvent(content)
        case "answer_reset":
            return TextResetEvent()
        case "agent_response":
            return AnswerEvent(content, about.get("finish_reason", "stop"))
        case "tool_call":
            step = about.get("step", 0)
            return ToolCallEvent(
                about["call_id"], content["tool"], frozen(content["arguments"]), step
            )
        case "delegation_request":
            step = about.get("step", 0)
            return DelegationEvent(about["call_id"], content["agent"], content["task"], step)
        case "tool_result" | "tool_error":
            return ToolResultEvent(about["call_id"], about.get("tool", ""), content, *_end(about))
        case "delegation_response" | "delegation_error":
            agent = about.get("agent", "")
            return DelegationResultEvent(about["call_id"], agent, content, *_end(about))
        case "approval_requested":
            return ApprovalRequestEvent(approval_of(content, about))
        case "approval_decided":
            return ApprovalDecisionEvent(about["call_id"], content, about.get("reason", ""))
        case "input_requested":
            schema = frozen(about["schema"]) if "schema" in about else None
            given = about["kind"], content, schema, about.get("url", ""), about["expires_at"]
            return InputRequestEvent(about["call_id"], *given)
        case "input_received":
            return InputAnswerEvent(about["call_id"], content)
        case "completed" | "max_steps" | "failed" | "aborted":
            usage = read_usage(about["usage"]) if "usage" in about else Usage()
            code = "" if kind == "completed" else about.get("code", kind)
            return RunEndEvent(kind, code, content or "", usage)
        case _:
            return OtherEvent(kind, frozen(content), frozen(about))


def _end(about: Any) -> tuple[JSON, str | None]:  # noqa: ANN401 - JSON
    value = about.get("value")
    return None if value is None else frozen(reference_value(value, "")), about.get("error")


def _live_event(notice: Notice) -> Event:
    fields: Any = notice.fields
    match notice.type:
        case "reasoning":
            return ReasoningEvent(fields["content"])
        case "tool_progress":
            return ToolProgressEvent(fields["call_id"], fields["target"], fields["message"])
        case "delegation_progress":
            return SubAgentEvent(tuple(fields["path"]), _event_below(fields))
        case name if name == MODEL_WAIT:
            return WaitEvent(fields["message"])
        case _:
            return OtherEvent(notice.type, None, frozen(fields))


def _event_below(fields: Any) -> Event:  # noqa: ANN401 - JSON
    """Return a sub-agent's event; one of unexpected form becomes an `OtherEvent`."""
    if "event" not in fields:
        return TextEvent(fields["content"])
    kind, content, about = (fields["event"][key] for key in ("type", "content", "metadata"))
    try:
        return _event(kind, content, about)
    except (KeyError, TypeError, AttributeError):
        return OtherEvent(kind, frozen(content), frozen(about))


def approval_of(content: Any, about: Any) -> Approval:  # noqa: ANN401 - JSON
    """Read the record of a call that waits."""
    is_tool = "tool" in content
    arguments = content["arguments"] if is_tool else {"task": content["task"]}
    return Approval(
        about["call_id"],
        content["tool"] if is_tool else None,
        None if is_tool else content["agent"],
        frozen(arguments),
        about.get("reason", ""),
        about["expires_at"],
    )
