"""The events of a run: facts, in the past tense. Their wire names are in `codec.EVENT_TYPES`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diptych.core.budget import UNLIMITED, Budget
from diptych.core.catalog import Catalog, Tool
from diptych.core.context_window import ContextWindow
from diptych.core.messages import (
    JSON,
    Call,
    JSONObject,
    Message,
    NativeCall,
    ParentCall,
    Result,
    Usage,
)
from diptych.core.reading import ActionError
from diptych.core.run_settings import RunSettings


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from, and the terms of its connection.

    `path` lists the card URLs of the agents before this one, `traceparent` is the caller's trace
    (W3C Trace Context), `seconds` the time left to the caller's deadline. With
    `cancels_on_disconnect`, the run is aborted when its last subscriber disconnects. `parent` is
    the delegating call. The run is aborted when nobody has subscribed for `lease` seconds. With
    `deadline_pauses`, the deadline pauses while a call waits for approval.
    """

    path: tuple[str, ...] = ()
    traceparent: str | None = None
    seconds: float | None = None
    cancels_on_disconnect: bool = False
    parent: ParentCall | None = None
    deadline_pauses: bool = False
    lease: float | None = None


Decision: TypeAlias = Literal["approve", "reject", "edit", "replace"]
"""An approver's options: make the call, reject it, change its arguments, or make another call."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A call with its references resolved needs approval (loop.md §6).

    `reason` says why. Undecided, it is rejected at `expires_at` (seconds since the epoch).
    """

    call: Call
    step: int
    reason: str
    expires_at: float

    @property
    def call_id(self) -> str:
        return self.call.id


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """An approval was decided; the first decision counts.

    `answer_id` identifies the decision. `call` is the call to make instead, under the same id:
    with other arguments (`edit`), or another call (`replace`). `subject` is who decided, "" if
    unknown or if `is_expired`. If an agent forwarded the decision, `caller` is that agent, and
    `subject` is only its claim.
    """

    call_id: str
    decision: Decision
    answer_id: str
    reason: str = ""
    call: Call | None = None
    subject: str = ""
    is_expired: bool = False
    caller: str = ""


InputKind: TypeAlias = Literal["form", "url", "sign_in", "caller_tool"]
InputAction: TypeAlias = Literal["accept", "decline", "cancel"]


@dataclass(frozen=True, slots=True)
class InputRequest:
    """A question of a call.

    `form`: for values that match a `schema`. `url`: to visit a page. `sign_in`: to sign in there.
    `caller_tool`: for the result of a tool that the run's caller brought.
    """

    kind: InputKind
    message: str
    schema: JSONObject | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class InputRequested:
    """A call that has started waits for input (loop.md §6). A call may ask repeatedly.

    Unanswered, it is cancelled at `expires_at` (seconds since the epoch). With its `state` the tool
    can continue the call in another process; without, an open connection holds the question.
    """

    call_id: str
    request: InputRequest
    expires_at: float
    state: JSON = None


@dataclass(frozen=True, slots=True)
class InputReceived:
    """A question was answered, or cancelled; the first answer counts.

    `answer_id` identifies the answer. The question is the one that was open at the record `seq` of
    the run's log. `content` is for the call alone: it is logged, but never shown. The other fields
    are those of `ApprovalDecided`.
    """

    call_id: str
    action: InputAction
    answer_id: str
    seq: int
    content: JSONObject | None = None
    subject: str = ""
    caller: str = ""
    is_expired: bool = False


WaitKind: TypeAlias = Literal["approval", "input"]


@dataclass(frozen=True, slots=True)
class ChildAsked:
    """A call of a child run, direct or indirect, waits for approval or input, as its agent says.

    `call_id` has the ids of the calls that lead there from this run's delegation, joined by dots.
    `content` and `about` are those of the child's record, at `seq` of its log. Answers go to the
    delegation's `agent`, to the task `task_id` at `url`. The agent that makes the call ends the
    wait at `expires_at` (seconds since the epoch).
    """

    kind: WaitKind
    call_id: str
    content: JSON
    about: JSONObject
    expires_at: float
    agent: str
    url: str
    task_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class ChildAnswered:
    """A call of a child run waits no longer, as the record `seq` of its log says.

    `answer` is the decision or action, or "closed" if there is none: a message superseded the call,
    or its run ended. `about` is the rest of the record.
    """

    kind: WaitKind
    call_id: str
    seq: int
    answer: str = "closed"
    about: JSONObject = field(default_factory=dict)


Asked: TypeAlias = ApprovalRequested | InputRequested | ChildAsked
"""A call begins to wait; each has a `call_id` and `expires_at`."""

Answer: TypeAlias = ApprovalDecided | InputReceived | ChildAnswered
"""The end of a wait: an answer, or the expiry."""


@dataclass(frozen=True, slots=True)
class MessageQueued:
    """A message for a run that exists (loop.md §6).

    It joins as soon as possible, or begins the next turn if it `is_follow_up`. Repeats of a
    `message_id` are ignored. `subject` is the sender, "" if unknown. `notes` are those of
    `RunRequested`.
    """

    message: str
    message_id: str
    subject: str = ""
    is_follow_up: bool = False
    notes: Mapping[str, JSON] = field(default_factory=dict, hash=False)


QueueKind: TypeAlias = Literal["steering", "follow_ups"]


@dataclass(frozen=True, slots=True)
class QueueCleared:
    """Queued messages were dropped, and never join the conversation.

    Repeats of a `clear_id` are ignored. `subject` is who cleared the queue. `only` limits the
    request to one kind of message.
    """

    clear_id: str
    message_ids: tuple[str, ...] = ()
    subject: str = ""
    only: QueueKind | None = None

    def clears(self, message: MessageQueued) -> bool:
        """Whether the request is about a message of this kind."""
        return self.only is None or message.is_follow_up == (self.only == "follow_ups")


@dataclass(frozen=True, slots=True)
class CallJudged:
    """The hooks have judged a call that is ready.

    `call` is the rewritten call, under the same id; `denied` is the reason of a denial. `hook`
    names the hook that did either.
    """

    call_id: str
    call: Call | None = None
    denied: str | None = None
    hook: str = ""


@dataclass(frozen=True, slots=True)
class StepJudged:
    """The hooks have judged a step; if `ends`, the hook named `hook` ended phase 1."""

    step: int
    ends: bool = False
    hook: str = ""


@dataclass(frozen=True, slots=True)
class AnswerJudged:
    """The hooks have judged an answer; `problem` is the objection of `hook`, "" for none."""

    problem: str = ""
    hook: str = ""


HookEvent: TypeAlias = CallJudged | StepJudged | AnswerJudged


CallKind = Literal["tool", "agent"]
CallFormat = Literal["json", "native"]
"""How a model writes calls: as JSON in its text, or as native `tool_calls` of the API."""


@dataclass(frozen=True, slots=True)
class RunRequested:
    """A caller requested a run; `earlier` holds prior messages that the caller sent along.

    `system` (the caller's own instructions), model `parameters`, `max_steps`, `max_retries`,
    `output_schema` (`{}`: any JSON object) and `budget` apply to this run only.
    `parts` are the message's content parts other than text. `resumes` is the id of a failed or
    aborted run to continue; there is no message then, unless that run never began. `subject` is who
    asks, "" if unknown. If an authenticated `caller` acts on behalf of a subject, `subject` is only
    its claim. `notes` belong to the caller's protocol; the loop ignores them. `tools` are the
    caller's own, offered to the model beside the agent's.
    """

    message: str
    earlier: tuple[Message, ...] = ()
    system: str = ""
    origin: Origin = field(default_factory=Origin)
    parts: tuple[JSONObject, ...] = ()
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    max_steps: int | None = None
    max_retries: int | None = None
    output_schema: JSONObject | None = None
    resumes: str | None = None
    subject: str = ""
    caller: str = ""
    budget: Budget = UNLIMITED
    notes: Mapping[str, JSON] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Offered:
    """The run begins: its catalog, system prompt and settings are fixed from here on.

    `action_format` is the initial format. If it is native, `native_prompt` is the system prompt,
    and `prompt` takes its place if the endpoint refuses tools. `key` is the hash of the blob that
    stores these for many runs (`codec.catalog_blob`). `nonce` is random per run, and marks data in
    the model's input. `window` is the known context window at the start.
    """

    catalog: Catalog
    prompt: str
    settings: RunSettings = field(default_factory=RunSettings)
    key: str = ""
    nonce: str = ""
    native_prompt: str = ""
    action_format: CallFormat = "json"
    window: ContextWindow = field(default_factory=ContextWindow)


@dataclass(frozen=True, slots=True)
class FormatChanged:
    """The endpoint refused native calls; the run continues in this format."""

    action_format: CallFormat
    reason: str


@dataclass(frozen=True, slots=True)
class OwnerChanged:
    """Another process has taken over the run, from its log.

    With `lost_tail`, the store may have lost the newest records, whose effects may have happened.
    """

    lost_tail: bool = False


@dataclass(frozen=True, slots=True)
class Replied:
    """The model's reply, with its native calls.

    For a streamed reply, `text` is only the part held back to the end; the rest is logged as
    `Streamed`. `reasoning` led to the calls, and is kept if the endpoint may want it back.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    calls: tuple[NativeCall, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ContextRefused:
    """The model refused a request as too long, and may have reported its window and the size."""

    max_tokens: int | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Compacted:
    """A summary replaces all but the newest `keeps` messages; `error` says why it failed."""

    summary: str
    keeps: int
    usage: Usage = field(default_factory=Usage)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyRejected:
    """A reply looked like an action but cannot be carried out."""

    error: ActionError
    said: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call with its references resolved is about to be sent; delegations have a `context_id`.

    `budget` is the delegation's share of the run's remaining budget.
    """

    call: Call
    step: int
    context_id: str | None = None
    budget: Budget = UNLIMITED


@dataclass(frozen=True, slots=True)
class Returned:
    """A call has its result, sent or not; `target` is the name that the model used.

    `hook` names the hook that replaced the result, if any.
    """

    result: Result
    kind: CallKind
    target: str
    hook: str = ""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A piece of the answer: `text` in the log and in streams."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerReset:
    """The answer's earlier text is void: a retry differed, or it was not an answer.

    `from_seq` is the first void record; `attempt` counts from 2.
    """

    from_seq: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole answer. `is_json`: it fits the run's output schema."""

    text: str
    finish_reason: str = "stop"
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """The run ended with an answer. `usage` is the total of its model calls."""

    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class StepsExhausted:
    """The run ended at `max_steps`, with the fixed text of loop.md §2 and its results so far."""

    text: str
    results: tuple[Result, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ended with a failure.

    `text` is the last answer if it failed its schema or a hook.
    """

    code: str
    message: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The run was cancelled."""

    reason: str


Stop: TypeAlias = Failed | Aborted
"""Ends that may come from outside, in any phase."""

Signal: TypeAlias = Stop | MessageQueued | QueueCleared | ApprovalDecided | InputReceived
"""Events that can be sent to an existing run (compare Temporal's signals)."""

Terminal: TypeAlias = Completed | StepsExhausted | Stop
Event: TypeAlias = (
    RunRequested
    | MessageQueued
    | QueueCleared
    | Offered
    | OwnerChanged
    | FormatChanged
    | Replied
    | ContextRefused
    | Compacted
    | ReplyRejected
    | Asked
    | Answer
    | HookEvent
    | Called
    | Returned
    | Streamed
    | AnswerReset
    | Answered
    | Terminal
)
