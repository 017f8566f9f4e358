"""The bodies of requests: their models, and reading and checking them.

Not here: headers (`http.run_request`), how large a body may be (`http.guards`), A2A's messages
(`http.a2a.message`).
"""

from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict

from diptych.errors import InvalidRequest
from diptych.loop.messages import Message

MAX_MESSAGES = 1_000

OnDisconnect = Literal["continue", "cancel"]
_SESSION = "Continues or starts a session; the header X-Session-ID does the same."
_ON_DISCONNECT = "`cancel`: the run is aborted when its last reader at this process hangs up."
_SESSION_ID: JsonDict = {"pattern": "^[A-Za-z0-9._-]{1,128}$"}  # the runtime checks it


class TextPart(BaseModel):
    """A part of a message's content; parts of other kinds are refused."""

    type: Literal["text", "input_text"]
    text: str


class CallerMessage(BaseModel):
    """One message of a conversation. Tools' roles are refused: the agent calls its own tools."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = Field(None, description="A user's is not blank.")

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


Messages = Annotated[
    list[CallerMessage],
    Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description="The conversation; its last message is the user's. In a known session only "
        "what follows the last answer is new.",
    ),
]


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool = Field(default=False, description="Whether a last chunk has the usage.")


class ChatBody(BaseModel):
    """`POST /v1/chat/completions`.

    Sampling fields of OpenAI's API (`temperature`, `max_tokens` …) are accepted and have no effect:
    the manifest decides them. Fields that would change what the reply means are refused.
    """

    model_config = ConfigDict(extra="allow")

    messages: Messages
    model: str | None = Field(None, description="The agent's name, if anything.")
    stream: bool = Field(default=False, description="Whether the answer comes as events.")
    stream_options: StreamOptions | None = None
    session_id: str | None = Field(None, description=_SESSION, json_schema_extra=_SESSION_ID)
    on_disconnect: OnDisconnect = Field("continue", description=_ON_DISCONNECT)
    n: Literal[1] | None = Field(None, description="There is one choice.")


class RunBody(BaseModel):
    """`POST /v1/runs`: either `input` or `messages`."""

    model_config = ConfigDict(extra="forbid")

    input: str | None = Field(None, description="The user's message.")
    messages: Messages | None = Field(None, description="A conversation, in place of `input`.")
    session_id: str | None = Field(None, description=_SESSION, json_schema_extra=_SESSION_ID)
    on_disconnect: OnDisconnect = Field("continue", description=_ON_DISCONNECT)


class MessageBody(BaseModel):
    """`POST /v1/runs/{id}/steer`."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(description="Text that is not blank.")


class Conversation(NamedTuple):
    """The caller's messages without system messages, and apart from them the system text."""

    messages: tuple[Message, ...]
    system: str = ""


Body = TypeVar("Body", bound=BaseModel)

_UNSUPPORTED = {
    "tools": "this agent calls its own tools; remove it",
    "functions": "this agent calls its own tools; remove it",
    "tool_choice": "this agent calls its own tools; remove it",
    "response_format": "structured output is not supported by this version; remove it",
    "output_schema": "structured output is not supported by this version; remove it",
    "budget": "budgets are not supported by this version; remove it",
    "audio": "this agent answers in text; remove it",
}


async def read_body(request: Request, model: type[Body]) -> Body:
    """Read a JSON body. Raises `InvalidRequest`, which names the field and what to do."""
    raw = await request.body()
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    for name, advice in _UNSUPPORTED.items():
        if body.get(name) not in (None, [], {"type": "text"}, "none"):
            raise InvalidRequest(f"{name}: {advice}", param=name, code="unsupported_parameter")
    try:
        return model.model_validate(body, strict=True)
    except ValidationError as error:
        raise _first_problem(error) from error


def read_conversation(messages: list[CallerMessage]) -> Conversation:
    """Read a conversation. Raises `InvalidRequest` if it has no question."""
    system = "\n\n".join(m.text for m in messages if m.role in ("system", "developer"))
    conversation: list[Message] = []
    for n, message in enumerate(messages):
        if message.role in ("system", "developer"):
            continue
        if message.role == "user":
            if not message.text.strip():
                raise InvalidRequest("the message is empty", param=f"messages[{n}].content")
            conversation.append(Message("user", message.text))
        elif message.text:
            conversation.append(Message("assistant", message.text))
    if not any(message.role == "user" for message in conversation):
        raise InvalidRequest("there is no user message", param="messages")
    return Conversation(tuple(conversation), system)


def _first_problem(error: ValidationError) -> InvalidRequest:
    """Describe the first problem in one sentence, without repeating the input."""
    problems = error.errors(include_url=False, include_context=True, include_input=False)
    problem = max(problems, key=lambda p: len(p["loc"])) if _is_union(problems) else problems[0]
    path = _path(problem["loc"])
    match problem["type"]:
        case "missing":
            return InvalidRequest(f"{path} is missing", param=path, code="missing_required_field")
        case "extra_forbidden":
            return InvalidRequest(f"{path} is not known here", param=path, code="unknown_parameter")
        case "too_long":
            return InvalidRequest(
                f"{path} has more than {MAX_MESSAGES} items; send fewer, or continue a session",
                param=path,
                code="array_above_max_length",
            )
        case "literal_error":
            expected = problem["ctx"]["expected"]
            return InvalidRequest(f"{path} must be {expected}", param=path, code="invalid_value")
        case _:
            sentence = problem["msg"][0].lower() + problem["msg"][1:]
            return InvalidRequest(f"{path}: {sentence}", param=path, code="invalid_type")


def _is_union(problems: list[Any]) -> bool:
    return len(problems) > 1 and len({p["loc"][:3] for p in problems}) == 1


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "TextPart"):
            path += f".{step}" if path else step
    return path or "body"
