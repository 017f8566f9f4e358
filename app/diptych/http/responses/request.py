"""Reads `POST /v1/responses` into a run request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import ConfigDict, Field

from diptych.core.errors import InvalidRequest, RunNotFound
from diptych.core.messages import JSONObject
from diptych.http.answer_form import AskedForm, TypedOutput, read_answer_form
from diptych.http.bodies import Body, RunOptions
from diptych.http.caller_calls import part_of, run_of
from diptych.http.chat import ChatBody
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.messages import MAX_MESSAGES
from diptych.http.parameters import ReadParameters, check_supported, read_parameters, warning
from diptych.http.responses.items import has_outputs, read_input, with_referred
from diptych.http.responses.state import ResponseState, fed
from diptych.http.run_request import ChatTerms, read_run_request
from diptych.runs.request import SESSION_ID, RunRequest

_CHAT = ChatBody.model_fields  # what both have is described there
_Items = Annotated[list[Any], Field(json_schema_extra={"items": {"type": "object"}})]
_Label = Annotated[str, Field(max_length=512)]


class TextOptions(Body):
    """The form of the answer."""

    model_config = ConfigDict(extra="allow")

    format: dict[str, Any] | None = Field(
        None, description="`json_schema` with a schema, `json_object`, or `text`."
    )
    verbosity: str | None = None


class ReasoningOptions(Body):
    """Options of the model's reasoning."""

    model_config = ConfigDict(extra="allow")

    effort: str | None = None


class ResponseBody(RunOptions):
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
    store: bool | None = Field(None, description="Every run is recorded, whatever this says.")
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="A conversation that is too long is made to fit, whatever this says."
    )


_ALIASES = {
    "max_output_tokens": "max_tokens",
    "reasoning.effort": "reasoning_effort",
    "text.verbosity": "verbosity",
}
_SILENT = frozenset({"stream_options"})  # turns obfuscation off, which is not done here
_PLACES = (  # in errors: where a chat has something, and where a response has it
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("].function", "]"),
)
_MAX_LABEL = 64  # characters of a name in `metadata`, in OpenAI's API


@dataclass(frozen=True, slots=True)
class _Previous:
    """The response that a request continues: its session, and the calls in its output."""

    session_id: str | None = None
    items: Sequence[dict[str, Any]] = ()


async def read_response_request(
    request: Request, body: ResponseBody, terms: ChatTerms, runs: GuardedRuns
) -> tuple[RunRequest, Mapping[str, str]]:
    """Return the run request, and warning headers for fields without effect.

    Raises `InvalidRequest`.
    """
    terms.check_model(body.model)
    _check(body)
    output, ignored_tools = await _read_form(body, terms)
    parameters = _read_parameters(body, terms)
    previous = await _read_previous(body, runs)
    given = body.input if isinstance(body.input, str) else await with_referred(body.input, runs)
    conversation = read_input(given, body.instructions, terms.inputs, previous.items)
    session_id = previous.session_id or _conversation(body)
    run = await read_run_request(request, conversation, body, session_id)
    run_request = replace(
        run,
        output_schema=output.schema,
        parameters=parameters.allowed,
        tools=output.offered,
        notes=_notes(body, output),
        follows=run_of(body.previous_response_id or ""),
    )
    left_out = terms.without_effect(conversation, "instructions")
    return run_request, warning((*left_out, *ignored_tools, *parameters.ignored))


def _check(body: ResponseBody) -> None:
    """Refuse fields that would change the reply's meaning. Raises `InvalidRequest`."""
    check_supported(body.model_extra or {})
    if (body.model_extra or {}).get("prompt") is not None:
        message = "prompt: this agent keeps no templates of prompts; send the text as input"
        raise InvalidRequest(message, param="prompt", code="unsupported_parameter")
    if body.background and body.on_disconnect == "cancel":
        message = "background: such a run goes on without its caller; leave out on_disconnect"
        raise InvalidRequest(message, param="on_disconnect")
    others = (body.conversation, body.session_id)
    if body.previous_response_id is not None and others != (None, None):
        message = "previous_response_id says which session goes on; send nothing else that does"
        raise InvalidRequest(message, param="previous_response_id")
    if any(len(name) > _MAX_LABEL for name in body.metadata or ()):
        message = f"metadata: a name has at most {_MAX_LABEL} characters"
        raise InvalidRequest(message, param="metadata")


async def _read_form(body: ResponseBody, terms: ChatTerms) -> tuple[TypedOutput, tuple[str, ...]]:
    """Read the answer's form by converting it to a chat's, whose objects are nested one level
    deeper.
    """
    form = body.text.format if body.text else None
    if form and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": form}
    tools = [
        {**tool, "function": tool} if isinstance(tool, Mapping) and _is_function(tool) else tool
        for tool in body.tools or ()
    ]
    choice: object = body.tool_choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "function", "function": choice}
    try:
        return await read_answer_form(AskedForm(form, tools, choice), terms.config.caller_tools)
    except InvalidRequest as error:
        message, param = error.message, error.param or ""
        for there, here in _PLACES:
            message, param = message.replace(there, here), param.replace(there, here)
        raise InvalidRequest(message, param=param or None, code=error.code) from error


def _is_function(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") == "function"


def _read_parameters(body: ResponseBody, terms: ChatTerms) -> ReadParameters:
    fields = {k: v for k, v in (body.model_extra or {}).items() if k not in _SILENT}
    for name in ("text", "reasoning"):
        if options := getattr(body, name):
            given = options.model_dump(exclude={"format"}, exclude_none=True)
            fields |= {f"{name}.{option}": value for option, value in given.items()}
    read = read_parameters(fields, terms.config.allow_parameters, _ALIASES)
    unkept = ("store",) if body.store is False else ()
    return ReadParameters(read.allowed, (*unkept, *read.ignored))


def _conversation(body: ResponseBody) -> str | None:
    """Return the session id in `conversation`, a string or an object with `id`."""
    given = body.conversation
    if given is None:
        return None
    named = given if isinstance(given, str) else given.get("id")
    is_id = isinstance(named, str) and SESSION_ID.fullmatch(named)
    if not is_id or body.session_id not in (None, named):
        message = (
            "conversation is the id of a session, of 1 to 128 of the characters A-Z a-z 0-9 . _ -, "
            "and the same as session_id"
        )
        raise InvalidRequest(message, param="conversation")
    return named


def _notes(body: ResponseBody, output: TypedOutput) -> JSONObject:
    """Return the fields that the response echoes; they are stored in the run's first record."""
    notes: JSONObject = {
        "background": bool(body.background),
        "metadata": body.metadata,
        "previous_response_id": body.previous_response_id,
        "tools": list(output.tools),
    }
    return {name: value for name, value in notes.items() if value}


async def _read_previous(body: ResponseBody, runs: GuardedRuns) -> _Previous:
    """Look up the response that a request continues, in one of the caller's sessions.

    Its run is read only if the input has outputs, which need their calls. Raises `InvalidRequest`.
    """
    response_id = body.previous_response_id
    if response_id is None:
        return _Previous()
    run_id = run_of(response_id)
    try:
        found = await part_of(response_id, runs)
        entry = found.entry
        session = await runs.entries(entry.session_id, limit=1)
        if session and session[0].run_id != run_id:
            session = await runs.entries(entry.session_id)
    except RunNotFound:
        session = ()
    if run_id not in [each.run_id for each in session]:
        raise InvalidRequest(
            "there is no response with this id, of which the session is yours",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if not has_outputs(body.input) and entry.status != "input-required":
        return _Previous(entry.session_id)
    records = await runs.records(run_id)
    output = fed(ResponseState("", *found), records).response()["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    if calls and not has_outputs(body.input):
        raise InvalidRequest(
            f"there is no output of the call {calls[0]['call_id']}; send it as an item "
            "function_call_output",
            param="input",
            code="missing_result",
        )
    # A conversation without a user's message, or with a blank one, is refused.
    asked = {"role": "user", "content": str(records[0].content) or "…"}
    return _Previous(entry.session_id, [asked, *calls] if calls else ())
