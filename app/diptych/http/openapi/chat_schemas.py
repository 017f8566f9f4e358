"""The schemas of what the chat endpoint replies, in OpenAI's form."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from diptych.http.openapi.reply import Reply
from diptych.http.schemas import ChatUsage


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

    model_config = ConfigDict(extra="allow")

    id: str
    """The id of the run."""
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    """In the last chunk alone, and only with `stream_options.include_usage`."""
