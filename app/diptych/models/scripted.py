"""A model that plays a script, which is the value of `DEBUG_MOCK_RESPONSES` (loop.md §10).

Every run starts at the first reply of the script; a model call is given the reply whose index is
the number of model calls that its run has on record. When the script has no more replies, the run
fails: no real model is ever asked instead.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import orjson

from diptych.core.errors import ConfigError, ModelCode, ModelError
from diptych.core.messages import Message, NativeCall, Usage
from diptych.core.model_request import ModelRequest
from diptych.core.text import well_formed
from diptych.ports import Delta, Model, Reply

VARIABLE = "DEBUG_MOCK_RESPONSES"
_FIELDS = {
    "content",
    "reasoning",
    "tool_calls",
    "finish_reason",
    "error",
    "delay_ms",
    "chunk_ms",
    "usage",
}
_CODES: tuple[ModelCode, ...] = get_args(ModelCode)
_JSON = Any  # not checked yet
_CHUNK = re.compile(r"\s*\S+\s?|\s+")  # a word with the space after it


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One scripted reply; times are in milliseconds, before the reply and before each chunk."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[NativeCall, ...] = ()
    finish_reason: str = "stop"
    error: ModelError | None = None
    delay_ms: float = 0
    chunk_ms: float = 0
    usage: Usage = field(default_factory=Usage)


Script = tuple[ScriptedReply, ...]


def read_script(value: str) -> Script:
    """Read the variable's value. Raises `ConfigError` with one line for what is wrong."""
    if value != well_formed(value):
        raise ConfigError(f"{VARIABLE}: is not valid UTF-8")
    if not value.lstrip().startswith(("[", "{")):
        return (ScriptedReply(value),)
    try:
        replies = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{VARIABLE}: is not valid JSON: {error}") from error
    if not isinstance(replies, list):
        replies = [replies]
    if not replies:
        raise ConfigError(f"{VARIABLE}: the list is empty; give at least one reply")
    return tuple(_read_reply(n, reply) for n, reply in enumerate(replies))


def script_problems(source: str, value: str) -> tuple[str, ...]:
    """Give a line for what is wrong with the variable's value, which stands at `source`."""
    try:
        read_script(value)
    except ConfigError as error:
        place = source.removesuffix(VARIABLE)  # its name begins each line
        return tuple(f"{place}{problem}" for problem in error.problems)
    return ()


class ScriptedModel(Model):
    """Plays a script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, request: ModelRequest) -> Reply:
        reply = await self._play(request.index)
        usage = _usage(reply, request.messages)
        return Reply(reply.content, usage, reply.finish_reason, reply.reasoning, reply.calls)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        reply = await self._play(request.index)
        for chunk in _CHUNK.findall(reply.reasoning):
            await asyncio.sleep(reply.chunk_ms / 1000)
            yield Delta(reasoning=chunk)
        for chunk in _CHUNK.findall(reply.content):
            await asyncio.sleep(reply.chunk_ms / 1000)
            yield Delta(chunk)
        usage = _usage(reply, request.messages)
        yield Delta(usage=usage, finish_reason=reply.finish_reason, calls=reply.calls)

    async def _play(self, index: int) -> ScriptedReply:
        if index >= len(self._script):
            raise ModelError(
                "mock_exhausted",
                f"{VARIABLE} has {_counted(len(self._script))}, and a further one was asked for. "
                'Phase 1 comes first, and ends with a reply without a call: ["{}", "Hello"]',
            )
        reply = self._script[index]
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        if reply.error is not None:
            error = reply.error
            raise ModelError(
                error.code,
                error.message,
                max_tokens=error.max_tokens,
                prompt_tokens=error.prompt_tokens,
            )
        return reply


def _counted(replies: int) -> str:
    return "1 reply" if replies == 1 else f"{replies} replies"


def _read_reply(n: int, reply: _JSON) -> ScriptedReply:
    place = f"{VARIABLE}[{n}]"
    match reply:
        case str():
            return ScriptedReply(reply)
        case dict():
            return _read_object(place, reply)
        case _:
            raise ConfigError(f"{place}: must be a string or an object, not {_kind(reply)}")


def _read_object(place: str, reply: Mapping[str, Any]) -> ScriptedReply:
    if unknown := reply.keys() - _FIELDS:
        known = ", ".join(sorted(_FIELDS))
        raise ConfigError(f"{place}: unknown field {min(unknown)!r}; known are {known}")
    if not reply.keys() & {"content", "tool_calls", "error"}:
        raise ConfigError(f'{place}: needs "content", "tool_calls" or "error"')
    calls = _read_calls(f"{place}.tool_calls", reply.get("tool_calls", []))
    finish_reason = _text(place, reply, "finish_reason")
    return ScriptedReply(
        content=_text(place, reply, "content") or "",
        reasoning=_text(place, reply, "reasoning") or "",
        calls=calls,
        finish_reason=finish_reason or ("tool_calls" if calls else "stop"),
        error=_read_error(place, reply.get("error")),
        delay_ms=_milliseconds(place, reply, "delay_ms"),
        chunk_ms=_milliseconds(place, reply, "chunk_ms"),
        usage=_read_usage(place, reply.get("usage", {})),
    )


def _text(place: str, reply: Mapping[str, Any], name: str) -> str | None:
    value = reply.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{place}.{name}: must be a string, not {_kind(value)}")


def _read_calls(place: str, calls: _JSON) -> tuple[NativeCall, ...]:
    """Read native calls, each in OpenAI's form or as its name and arguments alone.

    Arguments are an object, or the text that the model writes: it may be broken on purpose.
    """
    if not isinstance(calls, list):
        raise ConfigError(f"{place}: must be a list, not {_kind(calls)}")
    found = tuple(_read_call(f"{place}[{n}]", n, call) for n, call in enumerate(calls, start=1))
    if len({call.id for call in found}) < len(found):
        raise ConfigError(f"{place}: the ids of the calls must differ")
    return found


def _read_call(place: str, number: int, call: _JSON) -> NativeCall:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConfigError(f'{place}: must look like {{"name": "echo", "arguments": {{}}}}')
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str | dict):
        raise ConfigError(f"{place}.arguments: must be an object or its text")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return NativeCall(str(call.get("id") or f"call{number:05d}"), function["name"], text)


def _read_error(place: str, error: _JSON) -> ModelError | None:
    """Read an error: a message, or an object that may have a code and the numbers of a limit."""
    if error is None:
        return None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise ConfigError(f'{place}.error: must be a string or look like {{"message": "…"}}')
    code = error.get("code", "model_failed")
    if code not in _CODES:
        raise ConfigError(f"{place}.error.code: must be one of {', '.join(sorted(_CODES))}")
    limits = [error.get(name) for name in ("max_tokens", "prompt_tokens")]
    if not all(limit is None or type(limit) is int for limit in limits):
        raise ConfigError(f"{place}.error: max_tokens and prompt_tokens must be whole numbers")
    return ModelError(code, error["message"], max_tokens=limits[0], prompt_tokens=limits[1])


def _milliseconds(place: str, reply: Mapping[str, Any], name: str) -> float:
    value = reply.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{place}.{name}: must be a number of milliseconds, 0 or more")
    return value


def _read_usage(place: str, usage: _JSON) -> Usage:
    names = ("prompt_tokens", "completion_tokens")
    counts = [usage.get(name, 0) for name in names] if isinstance(usage, dict) else []
    if not counts or not all(type(count) is int and count >= 0 for count in counts):
        raise ConfigError(
            f'{place}.usage: must look like {{"prompt_tokens": 1, "completion_tokens": 1}}'
        )
    return Usage(*counts)


def _usage(reply: ScriptedReply, messages: Sequence[Message]) -> Usage:
    """Give the reply's usage; if it has none, count words, so that every run has a usage."""
    if reply.usage != Usage():
        return reply.usage
    prompt = sum(len(message.content.split()) for message in messages)
    said = (reply.content, *(call.arguments for call in reply.calls))
    return Usage(prompt, sum(len(text.split()) for text in said))


def _kind(value: _JSON) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
