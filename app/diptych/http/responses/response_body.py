"""The body of `POST /v1/responses`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from diptych.http.bodies import ChatBody, OnDisconnect
from diptych.http.messages import MAX_MESSAGES
from diptych.runs.definition import WhenBusy

_CHAT = ChatBody.model_fields  # what both have is described there
_Items = Annotated[list[Any], Field(json_schema_extra={"items": {"type": "object"}})]
_Label = Annotated[str, Field(max_length=512)]


class TextOptions(BaseModel):
    """The form of the answer."""

    model_config = ConfigDict(extra="allow")

    format: dict[str, Any] | None = Field(
        None, description="`json_schema` with a schema, `json_object`, or `text`."
    )
    verbosity: str | None = None


class ReasoningOptions(BaseModel):
    """How the model shall reason."""

    model_config = ConfigDict(extra="allow")

    effort: str | None = None


class ResponseBody(BaseModel):
    """`POST /v1/responses`. A field that is null counts as absent.

    Parameters (`temperature`, `top_p`, `max_output_tokens`, `reasoning.effort` …) reach the model
    as those of a chat do. Fields without effect are named by `X-Diptych-Warning`.
    """

    model_config = ConfigDict(extra="allow")

    input: str | Annotated[_Items, Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="The user's message, or items: messages, calls with their outputs, and "
        "references to the items that responses gave."
    )
    model: str | None = Field(None, description=_CHAT["model"].description)
    instructions: str | None = Field(None, description="A system text, for this run only.")
    stream: bool | None = Field(None, description=_CHAT["stream"].description)
    background: bool | None = Field(
        None, description="Whether the reply comes at once, and the run goes on without the caller."
    )
    previous_response_id: str | None = Field(
        None, description="Continues the session of this response, which is its newest."
    )
    conversation: str | dict[str, Any] | None = Field(
        None, description="Continues or starts a session, by its id."
    )
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[Any] | None = Field(None, description=_CHAT["tools"].description)
    tool_choice: str | dict[str, Any] | None = Field(
        None, description=_CHAT["tool_choice"].description
    )
    metadata: Annotated[dict[str, _Label], Field(max_length=16)] | None = Field(
        None, description="Is kept with the response."
    )
    store: bool | None = Field(None, description="Every run is on record, whatever this says.")
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="A conversation that is too long is made to fit, whatever this says."
    )
    session_id: str | None = Field(
        None,
        description=_CHAT["session_id"].description,
        json_schema_extra=_CHAT["session_id"].json_schema_extra,
    )
    on_disconnect: OnDisconnect | None = Field(None, description=_CHAT["on_disconnect"].description)
    when_busy: WhenBusy | None = Field(None, description=_CHAT["when_busy"].description)
    max_steps: int | None = Field(None, ge=1, description=_CHAT["max_steps"].description)
