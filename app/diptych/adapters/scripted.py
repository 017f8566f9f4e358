"""A model that plays a script, which is the value of `DEBUG_MOCK_RESPONSES` (loop.md §10).

Every run starts at the first reply of the script; a model call is given the reply whose index is
the number of model calls that its run has on record. When the script has no more replies, the run
fails: no real model is ever asked instead.

Not here: where the variable is read (`config`).
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from diptych.errors import ConfigError, ModelError
from diptych.loop.messages import Message, Usage
from diptych.loop.text import well_formed
from diptych.ports import Delta, Reply

VARIABLE = "DEBUG_MOCK_RESPONSES"
_FIELDS = {"content", "tool_calls", "error", "delay_ms", "chunk_ms", "usage"}
_JSON = Any  # not checked yet
_CHUNK = re.compile(r"\s*\S+\s?|\s+")  # a word with the space after it


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One scripted reply; times are in milliseconds, before the reply and before each chunk."""

    content: str = ""
    error: str | None = None
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


class ScriptedModel:
    """Plays a script. Fulfils `ports.Model`."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, messages: Sequence[Message], index: int) -> Reply:
        reply = await self._play(index)
        return Reply(reply.content, _usage(reply, messages))

    async def stream(self, messages: Sequence[Message], index: int) -> AsyncGenerator[Delta]:
        reply = await self._play(index)
        for chunk in _CHUNK.findall(reply.content):
            await asyncio.sleep(reply.chunk_ms / 1000)
            yield Delta(chunk)
        yield Delta(usage=_usage(reply, messages), finish_reason="stop")

    async def _play(self, index: int) -> ScriptedReply:
        if index >= len(self._script):
            raise ModelError(
                "mock_exhausted",
                f"{VARIABLE} has {len(self._script)} replies and a further one was asked for",
            )
        reply = self._script[index]
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        if reply.error is not None:
            raise ModelError("model_failed", reply.error)
        return reply


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
    if "tool_calls" in reply:
        raise ConfigError(
            f"{place}.tool_calls: native tool calls are not supported by this version of Diptych; "
            'write the call as "content": "{\\"tool\\": …}"'
        )
    if "content" not in reply and "error" not in reply:
        raise ConfigError(f'{place}: needs "content" or "error"')
    return ScriptedReply(
        content=_text(place, reply, "content") or "",
        error=_text(place, reply, "error"),
        delay_ms=_milliseconds(place, reply, "delay_ms"),
        chunk_ms=_milliseconds(place, reply, "chunk_ms"),
        usage=_read_usage(place, reply.get("usage", {})),
    )


def _text(place: str, reply: Mapping[str, Any], name: str) -> str | None:
    value = reply.get(name)
    if value is None or isinstance(value, str):
        return value
    if name == "error" and isinstance(value, dict) and isinstance(value.get("message"), str):
        return str(value["message"])
    raise ConfigError(f"{place}.{name}: must be a string, not {_kind(value)}")


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
    return Usage(prompt, len(reply.content.split()))


def _kind(value: _JSON) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
