"""Schemas of the agent's replies, for the OpenAPI document; replies are not built with them.

Tests compare them with real replies.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema


def _without_null(schema: dict[str, Any]) -> None:
    """Describe optional fields as absent, not null."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()) and "anyOf" in field:
            (field_type,) = [each for each in field.pop("anyOf") if each != {"type": "null"}]
            del field["default"]
            field.update(field_type)


class Reply(BaseModel):
    """A reply without additional fields."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, json_schema_extra=_without_null
    )


Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Objects = list[dict[str, Any]]


# Errors


class ErrorFields(Reply):
    """What went wrong, in OpenAI's form."""

    message: str
    type: Literal[
        "invalid_request_error", "rate_limit_error", "insufficient_quota", "server_error", "aborted"
    ]
    param: str | None
    """The field, header or parameter that is wrong."""
    code: str | None


class Error(Reply):
    """The error of every path under `/v1/`."""

    error: ErrorFields


class Problem(Reply):
    """The error of every other path (RFC 9457)."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    code: str | None = None
    param: str | None = None


# Runs


class Waiting(Reply):
    """A call that waits for somebody, or waited."""

    run_id: str
    session_id: str
    call_id: str
    path: list[str]
    """The ids of the calls that lead to it: of a call of the run itself, only its own."""
    agent: str | None = None
    """Of a call of a run below: the agent to which the first call of the path delegated."""
    requested_at: Time
    expires_at: Time
    """When the call is rejected, or its question cancelled, if nobody has answered."""
    passed_on_by: str | None = None
    """The agent that passed the answer on, if one did: then the subject is its word."""


class Approval(Waiting):
    """A call that waits for a decision, or waited for one."""

    object: Literal["approval"]
    call: dict[str, Any]
    """`tool` and `arguments`, or `agent` and `task`."""
    step: int
    reason: str
    """The policy's."""
    status: Literal["waiting", "decided", "closed"]
    """`closed`: a message superseded the call, or its run ended."""
    decision: Literal["approve", "reject", "edit", "replace"] | None = None
    decided_at: Time | None = None
    decided_by: str | None = None
    """The subject that decided, where it is known."""
    decision_reason: str | None = None
    made_as: dict[str, Any] | None = None
    """The call that was made in its place."""


class ApprovalList(Reply):
    """Calls that wait for decisions."""

    object: Literal["list"]
    data: list[Approval]


class Input(Waiting):
    """A question of a call that waits for a person's input, or waited for it."""

    object: Literal["input"]
    kind: Literal["form", "url", "sign_in", "caller_tool"]
    """`form`: for values that match the `schema`. `url`: to visit a page. `sign_in`: to sign in at
    the `url`. `caller_tool`: for the result of a tool of the run's caller."""
    message: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    url: str | None = None
    status: Literal["waiting", "answered", "closed"]
    """`closed`: the call ended, or its run."""
    action: Literal["accept", "decline", "cancel"] | None = None
    answered_at: Time | None = None
    answered_by: str | None = None
    """The subject that answered, where it is known."""


class InputList(Reply):
    """Questions that wait for answers."""

    object: Literal["list"]
    data: list[Input]


class Login(Reply):
    """A tool server at which people sign in."""

    object: Literal["login"]
    tool_server: str
    signed_in: bool
    """Whether the caller has signed in."""
    url: str | None = None
    """Where the caller's browser goes on with a sign-in that has begun."""


class LoginList(Reply):
    """The tool servers of an agent at which people sign in."""

    object: Literal["list"]
    data: list[Login]


class RunError(Reply):
    """Why a run has no answer."""

    code: str
    """`aborted`, or the code of the failure; those of HTTP errors among them."""
    message: str


class BudgetState(Reply):
    """The use and the rest of a budget. Money is a decimal string, `wall_clock` is in ms."""

    used: dict[str, int | str]
    limits: dict[str, int | str]
    left: dict[str, int | str]


class WaitingMessage(Reply):
    """A message that has not joined a run's conversation."""

    message: str
    sent_by: str | None = None
    """The subject that sent it, if it is known."""


class Queue(Reply):
    """The messages that wait in a run, in the order in which they came."""

    steer: list[WaitingMessage]
    """They join before the next request to the model."""
    follow_up: list[WaitingMessage]
    """Each begins a turn when the one before has its answer."""


class ClearedQueue(Reply):
    """The messages that were dropped from a run's queues."""

    queue: Queue


class Run(Reply):
    """A run. Fields that need its record are left out in lists and of a run that just started."""

    id: str
    object: Literal["run"]
    session_id: str
    status: Literal[
        "queued", "running", "input-required", "completed", "failed", "aborted", "max_steps"
    ]
    """The last four are the terminal events. `queued`: an earlier run of its session goes first.
    `input-required`: a call waits for a decision or for input."""
    created_at: Time
    updated_at: Time
    """The time of its newest event."""
    last_seq: int = Field(ge=1)
    """The id of its newest event."""
    resumes: str | None = None
    """The id of the run that this one takes up."""
    approvals: list[Approval] | None = None
    inputs: list[Input] | None = None
    queue: Queue | None = None
    """When one run is read that has not ended."""
    text: str | None = None
    """The answer so far, until the run ends."""
    answer: str | None = None
    """The whole answer, if there is one. Two turns of it have a blank line between them."""
    finish_reason: str | None = None
    """Of the model, or `length` if the run reached its `maxSteps`."""
    usage: dict[str, int] | None = None
    """The tokens of all of its model calls, once the run has given an answer."""
    children_usage: dict[str, int] | None = None
    """The tokens that its delegations used with all below them, as those agents say."""
    error: RunError | None = None
    """Of a run that failed or was aborted."""
    budget: dict[Literal["run", "session", "day"], BudgetState] | None = None
    """Where the run is limited, alone or with others."""


class RunList(Reply):
    """Runs, the oldest first."""

    object: Literal["list"]
    data: list[Run]
    has_more: bool
    """Whether there are older ones: pass the first id as `before` to read them."""


class DelegationNode(Reply):
    """A delegation of a run, and the run that it became. Times are in seconds since the epoch."""

    call_id: str
    step: int
    agent: str
    task: str
    """The first 2,000 characters of it."""
    context_id: str
    status: str
    """`running`, `completed`, or the kind of its error."""
    started_at: float
    ended_at: float | None
    child: dict[str, Any] | None = None
    """The task as recorded: `url`, `task_id`, `state`, `code`, `usage`."""
    run: dict[str, Any] | None = None
    """The run at the other agent: a tree itself, without `object`."""
    problem: str | None = None
    """Why that run is not shown."""


class RunTree(Reply):
    """A run and the runs below it. Times are in seconds since the epoch."""

    object: Literal["run.tree"]
    agent: str
    run_id: str
    status: str
    started_at: float
    ended_at: float | None
    model_calls: int
    tool_calls: int
    usage: dict[str, int]
    """The tokens of the run's own model calls, so far."""
    children_usage: dict[str, int]
    """The tokens of finished delegations, with all below them, as those agents say."""
    cost: str
    """The cost of the run's own model calls so far, by `model.prices`: a decimal."""
    children_cost: str
    delegations: list[DelegationNode]
    code: str | None = None
    """Why the run has no answer."""
    parent: dict[str, Any] | None = None
    """The call that the run comes from, as its caller says: `agent`, `run_id`, `call_id`."""


# The record


class Event(Reply):
    """An event of a run, as recorded."""

    event_type: str
    seq: int = Field(ge=1)
    """Counts a run's events from 1."""
    run_id: str
    session_id: str
    timestamp: Time
    content: Any
    """Text in most events."""
    metadata: dict[str, Any]


class EventList(Reply):
    """Events of one session, or of all, the oldest first."""

    agent: str
    events: list[Event]
    total: int
    """How many there are; the list holds at most the last `limit` of them."""
    next_before: str | None
    """Pass it as `before` to read older events; null if there are none."""


class Session(Reply):
    """A conversation."""

    session_id: str
    owner: str | None = None
    """The subject that began it, where callers are known."""
    runs: int
    events: int
    created_at: Time
    updated_at: Time
    first_words: str | None = None
    """The beginning of its first message, with `first_words`."""


class SessionList(Reply):
    """All sessions."""

    agent: str
    sessions: list[Session]
    total: int


# Chats


class Model(Reply):
    """The agent, as a model."""

    id: str
    """The agent's name."""
    object: Literal["model"]
    created: int
    """Seconds since the epoch at which this process started."""
    owned_by: Literal["diptych"]


class ModelList(Reply):
    """The agent is the only model."""

    object: Literal["list"]
    data: list[Model]


class ChatUsage(Reply):
    """The tokens of all of a run's own model calls, as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(Reply):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    """Null if the answer is a call."""
    refusal: None
    tool_calls: Objects | None = None
    """One call, in OpenAI's form, if the chat forced a tool of its own."""
    reasoning_content: str | None = None
    """The model's reasoning, as far as it came while this reply was waited for."""


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


class Delta(Reply):
    """A piece of the answer."""

    role: Literal["assistant"] | None = None
    content: Any = Field(None, json_schema_extra={"type": ["string", "null"]})
    """Null in the first chunk of an answer that is a call."""
    tool_calls: Objects | None = None
    """A piece of the call, in OpenAI's form: first its id and name, then of its arguments."""
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

    model_config = ConfigDict(extra="allow")

    id: str
    """The id of the run."""
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    """In the last chunk alone, and only with `stream_options.include_usage`."""


# Responses


class Item(Reply):
    """A message, a call, its output, or reasoning."""

    id: str
    type: Literal["message", "function_call", "function_call_output", "reasoning"]
    status: Literal["completed", "incomplete"]
    role: Literal["user", "assistant"] | None = None
    content: Objects | None = None
    summary: Objects | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    """JSON that fits the function's `parameters`."""
    output: str | None = None


class InputItemList(Reply):
    """A page of the items of an input."""

    object: Literal["list"]
    data: list[Item]
    first_id: str
    """Empty if the page is."""
    last_id: str
    has_more: bool


class DeletedResponse(Reply):
    """A response that was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseUsage(Reply):
    """The tokens of all of a run's own model calls. Nothing is known of the details: they are 0."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class SessionOfResponse(Reply):
    """The session, as a conversation."""

    id: str


class Response(Reply):
    """A run, in the newer form of OpenAI's API."""

    id: str
    """The id of the run."""
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    """`incomplete`: the model's answer was cut, or the run reached its `maxSteps`."""
    error: RunError | None
    """Of a run that failed or was aborted."""
    incomplete_details: dict[str, str] | None
    completed_at: int | None
    model: str
    """The agent's name."""
    output: list[Item]
    """One message for each turn of the run. Calls that the agent makes itself are not shown."""
    usage: ResponseUsage | None
    """Once the run has given an answer."""
    background: bool
    conversation: SessionOfResponse
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: Literal[True]
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any = Field(json_schema_extra={"type": ["string", "object"]})
    tools: Objects
    """The caller's tools of one of which the answer is a call."""
    top_p: float | None
    truncation: Literal["auto"]


# Health


class Health(Reply):
    """The process is alive."""

    status: Literal["ok"]
    agent: str


class Missing(Reply):
    """An unavailable dependency: a tool server, agent, key or rule."""

    kind: str
    name: str
    reason: str


class AgentTool(Reply):
    """A tool that the agent can call."""

    name: str
    """As the model knows it."""
    server: str
    description: str


class AgentPeer(Reply):
    """An agent that this one can delegate to."""

    name: str
    description: str


class AgentGap(Reply):
    """A model, tool server, agent or group of tools that cannot be used now."""

    kind: Literal["model", "server", "tool", "agent"]
    name: str
    reason: str | None = None
    """Why; needs the right to `read`."""


class Agent(Reply):
    """What the agent is for, and what it can use now."""

    object: Literal["agent"]
    name: str
    description: str
    version: str
    examples: list[str]
    """Questions to try."""
    models: list[str]
    """The model's name, then those of its fallbacks."""
    tools: list[AgentTool]
    agents: list[AgentPeer]
    unavailable: list[AgentGap]


class ScheduledRunEnd(Reply):
    """The end of a run that a schedule started; in a cluster `schedule` names its CronJob."""

    schedule: str
    run_id: str
    end: str
    """Its terminal event."""
    ended_at: str


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
    scheduled: list[ScheduledRunEnd] | None = None
    """The last run of each schedule that ended in this process."""


def definitions() -> dict[str, Any]:
    """Return all schemas by their names."""
    models = [each for each in Reply.__subclasses__() if each.__module__ == __name__]
    _, found = models_json_schema(
        [(model, "serialization") for model in models],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = found["$defs"]
    return schemas
