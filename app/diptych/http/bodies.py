"""The bodies of requests: their models, and reading and checking them."""

from typing import Any, Literal, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict

from diptych.core.errors import InvalidRequest
from diptych.http.budgets import BudgetBody
from diptych.http.messages import Messages
from diptych.http.repeated_keys import repeated_key_problem
from diptych.net.strict_reading import read_strictly
from diptych.runs.definition import WhenBusy

OnDisconnect = Literal["continue", "cancel"]
_SESSION = "Continues or starts a session; the header X-Session-ID does the same."
_ON_DISCONNECT = "`cancel`: the run is aborted when its last reader at this process hangs up."
_WHEN_BUSY = (
    "What happens while another run of the session is not finished, in place of the manifest's "
    "`sessions.whenBusy`: wait for it, refuse the request (409), or cancel that run."
)
_MAX_STEPS = "The most steps of this run; at most the manifest's `maxSteps`."
_SESSION_ID: JsonDict = {"pattern": "^[A-Za-z0-9._-]{1,128}$"}  # the runtime checks it


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = Field(None, description="Whether a last chunk has the usage.")


class ChatBody(BaseModel):
    """`POST /v1/chat/completions`. A field that is null counts as absent.

    Parameters of OpenAI's API (`temperature`, `max_tokens`, `stop` …) reach the model if the
    manifest's `chat.allowParameters` names them; `max_completion_tokens` counts as `max_tokens`.
    Others, and fields that are not known here, have no effect: the header `X-Diptych-Warning` of
    the reply names them. Fields that would change what the reply means are refused.
    """

    model_config = ConfigDict(extra="allow")

    messages: Messages
    model: str | None = Field(None, description="The agent's name, if anything.")
    stream: bool | None = Field(None, description="Whether the answer comes as events.")
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = Field(
        None,
        description="The form of the answer: `json_schema` with a schema that it fits, "
        "`json_object`, or `text`.",
    )
    tools: list[Any] | None = Field(
        None,
        description="The agent calls its own tools. A tool that `tool_choice` forces asks for an "
        "answer of that tool's form, as its call; others are refused, or ignored if the "
        "manifest's `chat.callerTools` says so.",
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="Forces a tool by its name, or one of all as `required`."
    )
    session_id: str | None = Field(None, description=_SESSION, json_schema_extra=_SESSION_ID)
    on_disconnect: OnDisconnect | None = Field(None, description=_ON_DISCONNECT)
    when_busy: WhenBusy | None = Field(None, description=_WHEN_BUSY)
    max_steps: int | None = Field(None, ge=1, description=_MAX_STEPS)
    n: Literal[1] | None = Field(None, description="There is one choice.")


class RunBody(BaseModel):
    """`POST /v1/runs`: either `input` or `messages`. A field that is null counts as absent."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": kind}}}
                for name, kind in (("input", "string"), ("messages", "array"))
            ]
        },
    )

    input: str | None = Field(None, description="The user's message.")
    messages: Messages | None = Field(None, description="A conversation, in place of `input`.")
    session_id: str | None = Field(None, description=_SESSION, json_schema_extra=_SESSION_ID)
    on_disconnect: OnDisconnect | None = Field(None, description=_ON_DISCONNECT)
    when_busy: WhenBusy | None = Field(None, description=_WHEN_BUSY)
    output_schema: dict[str, Any] | None = Field(
        None, description="A JSON Schema that the answer fits, as JSON."
    )
    max_steps: int | None = Field(None, ge=1, description=_MAX_STEPS)
    budget: BudgetBody | None = Field(None, description="What this run may use.")


class ResumeBody(BaseModel):
    """`POST /v1/runs/{id}/resume`; no body means `{}`."""

    model_config = ConfigDict(extra="forbid")

    max_steps: int | None = Field(
        None, ge=1, description="The most steps of the new run; at most the manifest's `maxSteps`."
    )


class MessageBody(BaseModel):
    """`POST /v1/runs/{id}/steer` and `/follow-up`."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(
        description="Text that is not blank.", json_schema_extra={"pattern": r"\S"}
    )


class DecisionBody(BaseModel):
    """`POST /v1/runs/{id}/approvals/{call_id}`. A field that is null counts as absent."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "reject", "edit", "replace"] = Field(
        description="`approve`: make the call. `reject`: make none. `edit`: make it with other "
        "`arguments`. `replace`: make another `call` in its place."
    )
    reason: str | None = Field(
        None, max_length=4096, description="Of a rejection: the model reads it."
    )
    arguments: dict[str, Any] | None = Field(
        None, description='Of `edit`: the new arguments; of a delegation `{"task": text}`.'
    )
    call: dict[str, Any] | None = Field(
        None,
        description='Of `replace`: `{"tool": name, "arguments": {…}}` or '
        '`{"agent": name, "task": text}`.',
    )
    subject: str | None = Field(
        None,
        max_length=512,
        description="Of an agent that passes a decision on: whose it is. It is recorded beside the "
        "agent, and gives no right.",
    )


_UNION_MEMBERS = ("str", "ContentPart")  # pydantic names them in a location
Body = TypeVar("Body", bound=BaseModel)

_UNSUPPORTED = {
    "budget": "only runs started by POST /v1/runs have a budget of their own; remove it",
    "audio": "this agent answers in text; remove it",
}


async def read_body(request: Request, model: type[Body], *, strictly: bool = False) -> Body:
    """Read a JSON body. Raises `InvalidRequest`, which names the field and what to do.

    A key that stands twice in one object is refused, and with `strictly` a number over 64 bits,
    too: each reader takes another value for them.
    """
    raw = await request.body()
    try:
        body = orjson.loads(raw)
        if strictly:
            await read_strictly(raw)
        elif problem := await repeated_key_problem(raw, body):
            raise ValueError(problem)  # noqa: TRY301 - as the reader's own
    except ValueError as error:  # `orjson.JSONDecodeError` is one
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    for name, advice in _UNSUPPORTED.items():
        if body.get(name) is not None and name not in model.model_fields:
            raise InvalidRequest(f"{name}: {advice}", param=name, code="unsupported_parameter")
    try:
        return model.model_validate(body, strict=True)
    except ValidationError as error:
        raise first_problem(error) from error


def first_problem(error: ValidationError) -> InvalidRequest:
    """Describe the first problem of a body in one sentence, without repeating the input."""
    problems = error.errors(include_url=False, include_context=True, include_input=False)
    problem = max(problems, key=_closeness) if _is_union(problems) else problems[0]
    path = _path(problem["loc"])
    match problem["type"]:
        case "missing":
            return InvalidRequest(f"{path} is missing", param=path, code="missing_required_field")
        case "extra_forbidden":
            return InvalidRequest(f"{path} is not known here", param=path, code="unknown_parameter")
        case "too_long":
            most = problem["ctx"]["max_length"]
            advice = "; send fewer, or continue a session" if path == "messages" else "; send fewer"
            return InvalidRequest(
                f"{path} has more than {most} items{advice}",
                param=path,
                code="array_above_max_length",
            )
        case "literal_error":
            expected = problem["ctx"]["expected"]
            return InvalidRequest(f"{path} must be {expected}", param=path, code="invalid_value")
        case "too_short" | "string_too_short":
            return InvalidRequest(f"{path} is empty", param=path, code="invalid_type")
        case kind:
            is_bound = kind in {"greater_than_equal", "less_than_equal"}
            code = "invalid_value" if is_bound else "invalid_type"
            return InvalidRequest(sentence(path, problem["msg"]), param=path, code=code)


def sentence(path: str, message: str) -> str:
    """Put pydantic's message about what stands at `path` into the words of our own."""
    message = message.partition(" or instance of ")[0]  # the name of a class of ours
    text = f"{path}: {message[0].lower()}{message[1:]}"
    return text.replace(": input should ", " must ", 1)


def _is_union(problems: list[Any]) -> bool:
    """Say whether problems are those of one value with the members of a union."""
    locations = [p["loc"] for p in problems]
    depth = 1 if all(isinstance(place, str) for loc in locations for place in loc) else 3
    return len(problems) > 1 and len({loc[:depth] for loc in locations}) == 1


def _closeness(problem: Any) -> tuple[int, bool]:  # noqa: ANN401 - pydantic's
    """Say how near a value came to this member of a union: the deepest, and of the right type."""
    return len(problem["loc"]), not str(problem["type"]).endswith("_type")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in _UNION_MEMBERS:
            path += f".{step}" if path else step
    return path or "body"
