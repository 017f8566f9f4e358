"""The events of a run: facts, in the past participle; record names in `codec.EVENT_TYPES`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diptych.core.budget import UNLIMITED, Budget
from diptych.core.catalog import Catalog
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
    """What a request says about where it came from.

    `path` holds the card URLs of the agents before this one, `traceparent` the caller's trace
    (W3C Trace Context), `seconds` what was left until the caller's deadline. With
    `cancels_on_disconnect` the run is aborted when its last subscriber hangs up. `parent` is the
    call of another agent's run that this one comes from. The run is aborted when
    nobody has waited for it for `lease` seconds. If `deadline_pauses`, those seconds stand
    still while a call waits for approval.
    """

    path: tuple[str, ...] = ()
    traceparent: str | None = None
    seconds: float | None = None
    cancels_on_disconnect: bool = False
    parent: ParentCall | None = None
    deadline_pauses: bool = False
    lease: float | None = None


Decision: TypeAlias = Literal["approve", "reject", "edit", "replace"]
"""What somebody who is asked may say: make the call, make none, make it otherwise, make another."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A call with its references filled waits for somebody to decide on it (loop.md §6).

    `reason` is why it is asked about. Without a decision it is rejected at `expires_at`, in
    seconds since the epoch.
    """

    call: Call
    step: int
    reason: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """Somebody has decided on a call that waits; the first decision counts.

    `decision_id` tells it from others. `call` is what is made in place of the one that was asked
    about: the same with other arguments (`edit`), or another one (`replace`), under the same id.
    `subject` is who decided, "" if nobody knows; one that `is_expired` nobody has decided. If that
    is only what an agent says that passed the decision on, `caller` is that agent.
    """

    call_id: str
    decision: Decision
    decision_id: str
    reason: str = ""
    call: Call | None = None
    subject: str = ""
    is_expired: bool = False
    caller: str = ""


@dataclass(frozen=True, slots=True)
class ChildApprovalRequested:
    """A call of a run below this one waits for somebody to decide on it, as its agent says.

    `path` holds the ids of the calls that lead there: a delegation of this run first, the call
    that waits last. `content` is that call as a record has it. `agent` is whom the delegation
    called, `url` and `task_id` name its task, which a decision is sent to. The agent that has the
    call rejects it at `expires_at`, in seconds since the epoch.
    """

    path: tuple[str, ...]
    content: JSONObject
    step: int
    reason: str
    expires_at: float
    agent: str
    url: str
    task_id: str


@dataclass(frozen=True, slots=True)
class ChildApprovalDecided:
    """A call of a run below waits no more. The fields are those of `ApprovalDecided`.

    `decision` is "closed" if nobody decided: a message superseded the call, or its run ended.
    `content` is what is made in its place, if that is another call.
    """

    path: tuple[str, ...]
    decision: Decision | Literal["closed"]
    decision_id: str = ""
    reason: str = ""
    content: JSONObject | None = None
    subject: str = ""
    is_expired: bool = False


ChildApproval: TypeAlias = ChildApprovalRequested | ChildApprovalDecided


def approval_id(path: tuple[str, ...]) -> str:
    """Return the id by which a call below is decided on in this run: its path, joined by dots."""
    return ".".join(path)


@dataclass(frozen=True, slots=True)
class MessageQueued:
    """Another message to a run that exists (loop.md §6).

    It joins as soon as possible; one that `is_follow_up` begins the next turn. A message that is
    sent again, under the same `message_id`, is taken once. `subject` is who sends it, "" if nobody
    knows. `notes` are as those of `RunRequested`.
    """

    message: str
    message_id: str
    subject: str = ""
    is_follow_up: bool = False
    notes: Mapping[str, JSON] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class QueueCleared:
    """Messages that waited, by their ids, are dropped: they never join the conversation.

    `clear_id` tells it from others: sent again, it clears once. `subject` is who cleared.
    """

    clear_id: str
    message_ids: tuple[str, ...] = ()
    subject: str = ""


@dataclass(frozen=True, slots=True)
class CallJudged:
    """The hooks have seen a call that is ready.

    `call` is what is made in its place, under the same id, if one of them rewrote it. If one of
    them denied it, `denied` is its reason. `hook` is the name of who did the one or the other.
    """

    call_id: str
    call: Call | None = None
    denied: str | None = None
    hook: str = ""


@dataclass(frozen=True, slots=True)
class StepJudged:
    """The hooks have seen a step and its results; if it `ends`, so does phase 1, as `hook` says."""

    step: int
    ends: bool = False
    hook: str = ""


@dataclass(frozen=True, slots=True)
class AnswerJudged:
    """The hooks have seen an answer; what `hook` finds wrong with it is a `problem`, else ""."""

    problem: str = ""
    hook: str = ""


HookEvent: TypeAlias = CallJudged | StepJudged | AnswerJudged


CallKind = Literal["tool", "agent"]
CallFormat = Literal["json", "native"]
"""How a model writes its calls: as JSON in its text, or natively, in the API's own `tool_calls`."""


@dataclass(frozen=True, slots=True)
class RunRequested:
    """The caller's message; `earlier` holds the messages before it that the caller sent along.

    `system` is the caller's own system text, for this run only; so are `parameters` of the model,
    `max_steps`, the JSON schema that the answer must fit (`{}`: any JSON object), and `budget`,
    what the run may use, where the manifest allows as much. `parts` are the message's content
    parts that are not text. With `resumes` there is no message, unless that run ended before it
    began: the run goes on where the one with this id failed or was aborted. `subject` is who asks,
    "" if nobody knows. If that is only what the caller says, for whom it works, `caller` is who was
    proved to ask. `notes` are what the caller's protocol keeps with the run and reads again; the
    loop does not.
    """

    message: str
    earlier: tuple[Message, ...] = ()
    system: str = ""
    origin: Origin = field(default_factory=Origin)
    parts: tuple[JSONObject, ...] = ()
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    max_steps: int | None = None
    output_schema: JSONObject | None = None
    resumes: str | None = None
    subject: str = ""
    caller: str = ""
    budget: Budget = UNLIMITED
    notes: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offered:
    """The run begins: its catalog, system prompt and settings are fixed from here on.

    `action_format` is the format that the run begins with. If that is native, `native_prompt` is
    its system prompt, and `prompt` the one that it goes on with if the endpoint refuses tools.
    `key` is the hash under which they are stored once for many runs (`codec.catalog_blob`).
    `nonce` is random for the run: it marks what is data in the texts that the model reads.
    `window` is what is known of the model's context window when the run starts.
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
    """The endpoint refused native calls: from here on the run asks for calls in this format."""

    action_format: CallFormat
    reason: str


@dataclass(frozen=True, slots=True)
class OwnerChanged:
    """Another process has taken the run over, from its record.

    With `lost_tail` the store may have lost the newest records: their effects may have happened.
    """

    lost_tail: bool = False


@dataclass(frozen=True, slots=True)
class Replied:
    """The model's reply, with the native calls in it.

    Of a streamed reply `text` is only what was held back to its end; what was told before is on
    record as `Streamed`. Of any other it is the whole.
    `reasoning` is what led to the calls, if the endpoint may want it back.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    calls: tuple[NativeCall, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ContextRefused:
    """The model refused a request as too long, and may have told its window and the request's."""

    max_tokens: int | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Compacted:
    """A summary stands for all but the newest `keeps` messages; if it failed, `error` says why."""

    summary: str
    keeps: int
    usage: Usage = field(default_factory=Usage)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyRejected:
    """A reply looked like an action and cannot be carried out."""

    error: ActionError
    said: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call with its references filled is about to be sent; delegations have a `context_id`.

    `budget` is what a delegation is given of what the run has left.
    """

    call: Call
    step: int
    context_id: str | None = None
    budget: Budget = UNLIMITED


@dataclass(frozen=True, slots=True)
class Returned:
    """A call has its result, sent or not; `target` is the name that the model used.

    `hook` is the name of the hook that replaced the result, if one did.
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
    """The answer came out differently, or was no answer: its earlier text is void.

    `from_seq` is the seq of the first void piece; `attempt` counts from 2.
    """

    from_seq: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole answer. `is_json`: it fits the JSON schema that the run has for it."""

    text: str
    finish_reason: str = "stop"
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """The end, with an answer. `usage` is the sum over the run's model calls."""

    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class StepsExhausted:
    """The end at `max_steps`, with the literal text of loop.md §2 and the results so far."""

    text: str
    results: tuple[Result, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The end, because of a failure that the run cannot survive.

    `text` is the last answer, if the failure is that it does not fit its schema.
    """

    code: str
    message: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The end by cancellation."""

    reason: str


Stop: TypeAlias = Failed | Aborted
"""An end that may come from outside, in any phase."""

Signal: TypeAlias = Stop | MessageQueued | QueueCleared | ApprovalDecided
"""What can be sent to a run that exists (as a signal of Temporal)."""

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
    | ApprovalRequested
    | ApprovalDecided
    | HookEvent
    | ChildApproval
    | Called
    | Returned
    | Streamed
    | AnswerReset
    | Answered
    | Terminal
)
