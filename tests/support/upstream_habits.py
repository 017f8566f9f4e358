"""What a habit of a model server is: what it answers, and what must come of it.

Each habit is named, and says where it was seen: an issue or pull request of a project, the
documentation of an API, or `own` for what a careless server may do. Bodies are written anew.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from support.upstream_server import JSON_TYPE, SSE_TYPE, Answer, End

from diptych.core.messages import Message, NativeCall
from diptych.core.model_request import FunctionTool, ModelRequest

WEATHER = FunctionTool(
    "get_weather",
    "Say what the weather is.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TIME = FunctionTool("get_time", "Say what time it is.", {"type": "object", "properties": {}})
PLAIN = ModelRequest((Message("system", "Be brief."), Message("user", "Hello")))
WITH_TOOLS = ModelRequest(PLAIN.messages, tools=(WEATHER, TIME))


@dataclass(frozen=True)
class Meant:
    """The answer that was meant."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[NativeCall, ...] = ()
    finish_reason: str = "stop"
    usage: tuple[int, int] | None = None


@dataclass(frozen=True)
class Habit:
    """How a server answers: whole, streamed or both; and what was meant, or the error's code."""

    name: str
    seen: str
    expected: Meant | str
    whole: Answer | None = None
    streamed: Answer | None = None
    request: ModelRequest = PLAIN
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    tries: int | None = None  # how often it is asked, if that matters


@dataclass(frozen=True)
class Refusal:
    """How a server refuses a part of a request, and in what request it refuses nothing."""

    name: str
    seen: str
    refuses: Callable[[Mapping[str, Any]], bool]
    body: Any
    status: int = 400
    request: ModelRequest = PLAIN
    settings: Mapping[str, Any] = field(default_factory=dict)


def whole(
    message: Mapping[str, Any] | None = None, finish_reason: str | None = "stop", **more: Any
) -> Answer:
    """A whole reply in OpenAI's form; `more` are fields beside its choices."""
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return Answer((dumps({"id": "c-1", "object": "chat.completion", "choices": [choice], **more}),))


def chunk(
    delta: Mapping[str, Any] | None, finish_reason: str | None = None, **more: Any
) -> dict[str, Any]:
    """A chunk in OpenAI's form; `more` are fields beside its choices."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], **more}


def sse(*events: Any, content_type: str | None = SSE_TYPE, end: End = "close") -> Answer:
    """A stream: mappings become `data:` lines, bytes are written as they are, None is `[DONE]`."""
    pieces = []
    for event in events:
        if isinstance(event, bytes):
            pieces.append(event)
        else:
            data = b"[DONE]" if event is None else dumps(event)
            pieces.append(b"data: " + data + b"\n\n")
    return Answer(tuple(pieces), content_type=content_type, end=end)


def said(*deltas: Any, finish_reason: str = "stop") -> Answer:
    """A stream of deltas, with a finish reason and `[DONE]` at its end; texts are content."""
    as_deltas = [{"content": d} if isinstance(d, str) else d for d in deltas]
    return sse(*map(chunk, as_deltas), chunk({}, finish_reason), None)


def hello(body: Any) -> Answer:
    """A short answer, in the way in which it was asked for."""
    return said("Hello.") if body["stream"] else whole({"content": "Hello."})


def refusal(body: Any, status: int = 400, **headers: str) -> Answer:
    """A response with an error status."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer((as_bytes(body),), status, JSON_TYPE, given)


def error(message: str, **more: Any) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": message, **more}}


def call(call_id: str = "call_1", city: str = "Oslo") -> NativeCall:
    """A call of the weather as it must arrive."""
    return NativeCall(call_id, "get_weather", f'{{"city":"{city}"}}')


def dumps(value: Any) -> bytes:
    return orjson.dumps(value)


def as_bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else dumps(body)
