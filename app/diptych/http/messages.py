"""A caller's messages: their schema, and parsing into a conversation."""

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from diptych.core.errors import InvalidRequest
from diptych.core.messages import JSONObject, Message, NativeCall
from diptych.http.bodies import Body

MAX_MESSAGES = 1_000

_SYSTEM = ("system", "developer")
_RESULTS = ("tool", "function")
_KINDS = {"image_url": "image", "input_audio": "audio", "file": "file"}
"""The entry of `model.inputs` that parts of a type need; each has an object of its type's name."""
_REASONING = ("thinking", "redacted_thinking", "reasoning", "reasoning_content", "reasoning_text")
"""Parts of earlier answers, in the forms of other APIs. No model needs its reasoning again."""


class ContentPart(Body):
    """A part of a message's content, in OpenAI's form: text, image, audio or file.

    An image may be a URL, which the model's endpoint reads, or a `data:` URL. Reasoning is dropped.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal[
        "text",
        "input_text",
        "output_text",
        "refusal",
        "image_url",
        "input_audio",
        "file",
        "thinking",
        "redacted_thinking",
        "reasoning",
        "reasoning_content",
        "reasoning_text",
    ]
    text: str | None = None
    refusal: str | None = None
    image_url: dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None


class CalledFunction(Body):
    """The function that an assistant's message calls."""

    name: str = Field(min_length=1)
    arguments: str = Field(description="As JSON.")


class CallerToolCall(Body):
    """A call in an earlier assistant message; a `tool` message has its result."""

    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction


class CallerMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = Field(None, description="A user's is not blank.")
    tool_calls: list[CallerToolCall] | None = Field(
        None, description="Of an assistant's message. Each has its `tool` message after it."
    )
    tool_call_id: str | None = Field(None, description="Of a `tool` message: the call it answers.")
    function_call: CalledFunction | None = Field(
        None, description="Of an assistant's message: a call in the form before `tool_calls`."
    )
    name: str | None = Field(None, description="Of a `function` message: the function it answers.")


Messages = Annotated[
    list[CallerMessage],
    Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description="The conversation. In a known session only what follows the last answer is "
        "new. If its last message is the assistant's, the answer continues that.",
    ),
]


class Conversation(NamedTuple):
    """The caller's messages, with the system text split off."""

    messages: tuple[Message, ...]
    system: str = ""


def read_conversation(
    messages: Sequence[CallerMessage], inputs: Collection[str] = (), places: Sequence[str] = ()
) -> Conversation:
    """Read a conversation.

    `inputs` are the model's input kinds besides text (`model.inputs`). `places` are the messages'
    paths in the body, by default in `messages`. Raises `InvalidRequest` without a question, or for
    a part that the model does not accept.
    """
    system: list[str] = []
    conversation: list[Message] = []
    placed = _with_tools(messages, places or [f"messages[{n}]" for n in range(len(messages))])
    for message, place in placed:
        text, parts = _read_content(message, f"{place}.content", inputs)
        if message.role in _SYSTEM:
            system.append(text)
        elif message.role == "user":
            if not (text.strip() or parts):
                raise InvalidRequest("the message is empty", param=f"{place}.content")
            conversation.append(Message("user", text, parts=parts))
        elif message.role in _RESULTS:
            conversation.append(Message("tool", text, call_id=message.tool_call_id))
        elif text or message.tool_calls:
            calls = tuple(map(_call, message.tool_calls or ()))
            conversation.append(Message("assistant", text, calls=calls))
    _check_results(placed)
    if not any(message.role == "user" for message in conversation):
        raise InvalidRequest(
            "there is no user message", param=(places or ["messages"])[-1].partition("[")[0]
        )
    return Conversation(tuple(conversation), "\n\n".join(system))


def _with_tools(
    messages: Sequence[CallerMessage], places: Sequence[str]
) -> list[tuple[CallerMessage, str]]:
    """Convert OpenAI's deprecated function calls and results to tool calls and results.

    OpenAI accepts a result without its call; model endpoints do not, so a call is added.
    """
    placed: list[tuple[CallerMessage, str]] = []
    for message, place in zip(messages, places, strict=True):
        if message.role != "function" or not message.name:
            placed.append((message, place))
            continue
        caller, called = CallerMessage.model_validate({"role": "assistant"}), place
        function = CalledFunction(name=message.name, arguments="{}")
        call_before = placed[-1][0].function_call if placed else None
        if call_before and call_before.name == message.name:
            (caller, called), function = placed.pop(), call_before
        call = CallerToolCall(id=f"call{len(placed):05}", function=function)
        placed.append((caller.model_copy(update={"tool_calls": [call]}), called))
        result = message.model_copy(update={"role": "tool", "tool_call_id": call.id})
        placed.append((result, place))
    return placed


def _call(call: CallerToolCall) -> NativeCall:
    return NativeCall(call.id, call.function.name, call.function.arguments)


def _read_content(
    message: CallerMessage, place: str, inputs: Collection[str]
) -> tuple[str, tuple[JSONObject, ...]]:
    """Return the text of a message, and its other parts in their order."""
    if not isinstance(message.content, list):
        return message.content or "", ()
    texts: list[str] = []
    others: list[JSONObject] = []
    for n, part in enumerate(message.content):
        if part.type in _REASONING:
            continue
        kind = _KINDS.get(part.type)
        if kind is None:
            texts.append(_text(part, f"{place}[{n}]"))
            continue
        _check_input(message.role, kind, f"{place}[{n}]", inputs)
        value = getattr(part, part.type)
        if value is None:
            raise _missing(f"{place}[{n}].{part.type}")
        others.append({"type": part.type, part.type: value})
    return "\n".join(filter(None, texts)), tuple(others)


def _text(part: ContentPart, place: str) -> str:
    field = "refusal" if part.type == "refusal" else "text"
    text = getattr(part, field)
    if text is None:
        raise _missing(f"{place}.{field}")
    return str(text)


def _check_input(role: str, kind: str, place: str, inputs: Collection[str]) -> None:
    """Refuse a non-text part that the model or the role does not accept."""
    if role != "user":
        raise InvalidRequest(
            f"{place}: only a user's message may hold a part of the kind {kind}; leave it out",
            param=place,
            code="unsupported_content",
        )
    if kind not in inputs:
        takes = ", ".join(("text", *inputs))
        raise InvalidRequest(
            f"{place}: this agent's model takes {takes}, and no part of the kind {kind}; leave it "
            f"out, or add {kind} to model.inputs in the agent's manifest",
            param=place,
            code="unsupported_content",
        )


def _check_results(placed: Sequence[tuple[CallerMessage, str]]) -> None:
    """Refuse calls without a result and results without a call: model endpoints do too."""
    open_calls: dict[str, str] = {}  # with the place of each
    for message, place in placed:
        is_chat = place.startswith("messages")  # else the items of a response
        if message.role in _RESULTS:
            field = f"{place}.tool_call_id" if is_chat else f"{place}.call_id"
            if message.tool_call_id is None:
                raise _missing(field)
            if open_calls.pop(message.tool_call_id, None) is None:
                raise InvalidRequest(f"{field}: no call before it has this id", param=field)
            continue
        _check_no_open(open_calls)
        for m, call in enumerate(_calls(message)):
            open_calls[call.id] = f"{place}.tool_calls[{m}]" if is_chat else place
    _check_no_open(open_calls)


def _calls(message: CallerMessage) -> Iterator[CallerToolCall]:
    yield from (message.tool_calls or ()) if message.role == "assistant" else ()


def _check_no_open(open_calls: dict[str, str]) -> None:
    if open_calls:
        call_id, place = next(iter(open_calls.items()))
        raise InvalidRequest(
            f"{place}: no result of the call {call_id[:100]!r} follows; add one with its id",
            param=place,
        )


def _missing(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path} is missing", param=path, code="missing_required_field")
