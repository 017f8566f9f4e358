"""The schemas of what the agent replies. They describe; no reply is built or checked with them.

A test compares them with real replies. Not here: the bodies of requests (`http.bodies`), what the
replies are made of (`http.views`, `http.chat.completion`).
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from diptych.http.openapi.approval_schemas import Approval
from diptych.http.openapi.reply import CONFIG, Reply


class ChatUsage(Reply):
    """The tokens of all of a run's own model calls, as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class RunError(Reply):
    """Why a run has no answer."""

    code: str
    """`aborted`, or the code of the failure; those of HTTP errors among them."""
    message: str


RunStatus = Literal[
    "queued", "running", "input-required", "completed", "failed", "aborted", "max_steps"
]


class Run(Reply):
    """A run. What depends on its record is left out in lists and of a run that has just started."""

    id: str
    object: Literal["run"]
    session_id: str
    status: RunStatus
    """The last four are the terminal events. `queued`: an earlier run of its session goes first.
    `input-required`: a call waits for somebody's decision."""
    created_at: str = Field(json_schema_extra={"format": "date-time"})
    updated_at: str = Field(json_schema_extra={"format": "date-time"})
    """The time of its newest event."""
    last_seq: int = Field(ge=1)
    """The id of its newest event."""
    resumes: str | None = None
    """The id of the run that this one takes up."""
    approvals: list[Approval] | None = None
    """The calls of it that somebody was asked about."""
    text: str | None = None
    """The answer so far, until the run ends."""
    answer: str | None = None
    """The whole answer, if there is one. Two turns of it have a blank line between them."""
    finish_reason: str | None = None
    """Of the model, or `length` if the run reached its `maxSteps`."""
    usage: dict[str, int] | None = None
    """The tokens of all of its model calls, once the run has given an answer."""
    error: RunError | None = None
    """Of a run that failed or was aborted."""


class RunList(Reply):
    """Runs, the oldest first."""

    object: Literal["list"]
    data: list[Run]
    has_more: bool
    """Whether there are older ones: give the first id as `before` to read them."""


class Event(Reply):
    """A fact of a run, as its record holds it."""

    event_type: str
    seq: int = Field(ge=1)
    """Counts a run's events from 1."""
    run_id: str
    session_id: str
    timestamp: str = Field(json_schema_extra={"format": "date-time"})
    content: Any
    """Text in most events."""
    metadata: dict[str, Any]


class EventList(Reply):
    """Events of one session, or of all, the oldest first."""

    agent: str
    events: list[Event]
    total: int
    """How many there are; the list holds the last `limit` of them."""


class Session(Reply):
    """A conversation."""

    session_id: str
    runs: int
    events: int
    created_at: str = Field(json_schema_extra={"format": "date-time"})
    updated_at: str = Field(json_schema_extra={"format": "date-time"})


class SessionList(Reply):
    """All sessions."""

    agent: str
    sessions: list[Session]
    total: int


class Model(Reply):
    """The agent, as a model."""

    id: str
    """The agent's name."""
    object: Literal["model"]
    created: int
    """Seconds since the epoch at which this process started."""
    owned_by: Literal["diptych"]


class ModelList(Reply):
    """The one model that the agent is."""

    object: Literal["list"]
    data: list[Model]


class MadeFunction(Reply):
    """The caller's function, and the answer as its arguments."""

    name: str
    arguments: str
    """JSON that fits the function's `parameters`."""


class MadeCall(Reply):
    """The answer to a chat that forces one tool of its own."""

    id: str
    type: Literal["function"]
    function: MadeFunction


class AssistantMessage(Reply):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    """Null if the answer is a call."""
    refusal: None
    tool_calls: list[MadeCall] | None = None
    """One, if the chat forced a tool of its own."""
    reasoning_content: str | None = None
    """The model's reasoning, as far as it was told while this reply was waited for."""


class Choice(Reply):
    """The only choice of a completion."""

    index: Literal[0]
    message: AssistantMessage
    logprobs: None
    finish_reason: str
    """Of the model; `tool_calls` for a call; `length` if the run reached its `maxSteps`."""


class ChatCompletion(Reply):
    """A whole answer, in OpenAI's form."""

    id: str
    """The id of the run."""
    object: Literal["chat.completion"]
    created: int
    model: str
    """The agent's name."""
    choices: list[Choice]
    usage: ChatUsage


class FunctionDelta(Reply):
    """A piece of a call: first the name, then pieces of the arguments."""

    name: str | None = None
    arguments: str


class CallDelta(Reply):
    """A piece of the call that a chat forced; only the first has `id` and `type`."""

    index: Literal[0]
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(Reply):
    """A piece of the answer."""

    role: Literal["assistant"] | None = None
    content: Any = Field(None, json_schema_extra={"type": ["string", "null"]})
    """Null in the first chunk of an answer that is a call."""
    tool_calls: list[CallDelta] | None = None
    reasoning_content: str | None = None
    """A piece of the model's reasoning, which is no part of the answer."""


class ChunkChoice(Reply):
    """The only choice of a chunk."""

    index: Literal[0]
    delta: Delta
    finish_reason: str | None


class ChatCompletionChunk(Reply):
    """A piece of a streamed answer, in OpenAI's form.

    A notice is a chunk with an empty `delta`, `event: progress`, and its own fields beside these.
    """

    model_config = ConfigDict(**{**CONFIG, "extra": "allow"})

    id: str
    """The id of the run."""
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    """In the last chunk alone, and only with `stream_options.include_usage`."""


class Health(Reply):
    """The process is alive."""

    status: Literal["ok"]
    agent: str


class Missing(Reply):
    """A tool server, an agent or a key that the agent does without now."""

    kind: str
    name: str
    reason: str


class Ready(Reply):
    """Whether the agent takes work. All but `status` and `agent` needs the right to `read`."""

    status: Literal["ready", "not ready"]
    agent: str
    reason: str | None = None
    """Why not; empty if it does."""
    missing: list[Missing] | None = None
    notes: list[str] | None = None
    action_format: Literal["json", "native"] | None = None
    """How runs that start now ask the model for calls."""
