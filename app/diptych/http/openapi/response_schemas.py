"""The schema of a response in the newer form of OpenAI's API."""

from typing import Any, Literal

from pydantic import Field

from diptych.http.openapi.reply import Reply
from diptych.http.schemas import RunError


class OutputItem(Reply):
    """A part of what a run gave: a message, a call of the caller's tool, or its reasoning."""

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"] | None = None
    content: list[dict[str, Any]] | None = None
    """Of a message: one `output_text`. Of reasoning: what was heard while the reply was waited for.
    """
    summary: list[dict[str, Any]] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    """JSON that fits the function's `parameters`."""


class DeletedResponse(Reply):
    """A response that was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseUsage(Reply):
    """The tokens of all of a run's own model calls. Of the details nothing is known: they are 0."""

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
    output: list[OutputItem]
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
    tools: list[dict[str, Any]]
    """The caller's tools of one of which the answer is a call."""
    top_p: float | None
    truncation: Literal["auto"]


class InputItem(Reply):
    """A part of what a request brought: a message, or a call of an earlier one with its output."""

    id: str
    type: Literal["message", "function_call", "function_call_output"]
    status: Literal["completed"]
    role: Literal["user", "assistant"] | None = None
    content: list[dict[str, Any]] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


class InputItemList(Reply):
    """A page of the items of an input."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str
    """Empty if the page is."""
    last_id: str
    has_more: bool
