"""A model that says what it is told to: what `DEBUG_MOCK_RESPONSES` is (loop.md §10).

Every run starts at the first entry; a model call takes the entry whose index is the number of
model calls that its run has on record. When the list is used up the run fails: it never falls
through to a real model.
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
_Given = Any  # whatever JSON may hold
_CHUNK = re.compile(r"\s*\S+\s?|\s+")  # a word with the space after it


@dataclass(frozen=True, slots=True)
class Entry:
    """One scripted reply; times are in milliseconds, before the reply and before each chunk."""

    content: str = ""
    error: str | None = None
    delay_ms: float = 0
    chunk_ms: float = 0
    usage: Usage = field(default_factory=Usage)


Script = tuple[Entry, ...]


def read_script(value: str) -> Script:
    """Read the variable's value. Raises `ConfigError` with one line that says what is wrong."""
    if value != well_formed(value):
        raise ConfigError(f"{VARIABLE}: is not valid UTF-8")
    if not value.lstrip().startswith(("[", "{")):
        return (Entry(value),)
    try:
        entries = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{VARIABLE}: is not valid JSON: {error}") from error
    if not isinstance(entries, list):
        entries = [entries]
    if not entries:
        raise ConfigError(f"{VARIABLE}: the list is empty; give at least one reply")
    return tuple(_read_entry(n, entry) for n, entry in enumerate(entries))


class ScriptedModel:
    """Plays a script; fulfils `ports.Model`."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, messages: Sequence[Message], index: int) -> Reply:
        entry = await self._play(index)
        return Reply(entry.content, _usage(entry, messages))

    async def stream(self, messages: Sequence[Message], index: int) -> AsyncGenerator[Delta]:
        entry = await self._play(index)
        for chunk in _CHUNK.findall(entry.content):
            await asyncio.sleep(entry.chunk_ms / 1000)
            yield Delta(chunk)
        yield Delta(usage=_usage(entry, messages), finish_reason="stop")

    async def _play(self, index: int) -> Entry:
        if index >= len(self._script):
            raise ModelError(
                "mock_exhausted",
                f"{VARIABLE} has {len(self._script)} replies and a further one was asked for",
            )
        entry = self._script[index]
        if entry.delay_ms:
            await asyncio.sleep(entry.delay_ms / 1000)
        if entry.error is not None:
            raise ModelError("model_failed", entry.error)
        return entry


def _read_entry(n: int, entry: _Given) -> Entry:
    place = f"{VARIABLE}[{n}]"
    match entry:
        case str():
            return Entry(entry)
        case dict():
            return _read_object(place, entry)
        case _:
            raise ConfigError(f"{place}: must be a string or an object, not {_kind(entry)}")


def _read_object(place: str, entry: Mapping[str, Any]) -> Entry:
    if unknown := entry.keys() - _FIELDS:
        known = ", ".join(sorted(_FIELDS))
        raise ConfigError(f"{place}: unknown field {min(unknown)!r}; known are {known}")
    if "tool_calls" in entry:
        raise ConfigError(
            f"{place}.tool_calls: native tool calls are not supported by this version of Diptych; "
            'write the call as "content": "{\\"tool\\": …}"'
        )
    if "content" not in entry and "error" not in entry:
        raise ConfigError(f'{place}: needs "content" or "error"')
    return Entry(
        content=_text(place, entry, "content") or "",
        error=_text(place, entry, "error"),
        delay_ms=_milliseconds(place, entry, "delay_ms"),
        chunk_ms=_milliseconds(place, entry, "chunk_ms"),
        usage=_read_usage(place, entry.get("usage", {})),
    )


def _text(place: str, entry: Mapping[str, Any], name: str) -> str | None:
    value = entry.get(name)
    if value is None or isinstance(value, str):
        return value
    if name == "error" and isinstance(value, dict) and isinstance(value.get("message"), str):
        return str(value["message"])
    raise ConfigError(f"{place}.{name}: must be a string, not {_kind(value)}")


def _milliseconds(place: str, entry: Mapping[str, Any], name: str) -> float:
    value = entry.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{place}.{name}: must be a number of milliseconds, 0 or more")
    return value


def _read_usage(place: str, usage: _Given) -> Usage:
    names = ("prompt_tokens", "completion_tokens")
    counts = [usage.get(name, 0) for name in names] if isinstance(usage, dict) else []
    if not counts or not all(type(count) is int and count >= 0 for count in counts):
        raise ConfigError(
            f'{place}.usage: must look like {{"prompt_tokens": 1, "completion_tokens": 1}}'
        )
    return Usage(*counts)


def _usage(entry: Entry, messages: Sequence[Message]) -> Usage:
    """Give the entry's usage, or count words, so that a scripted run has a usage to show."""
    if entry.usage != Usage():
        return entry.usage
    prompt = sum(len(message.content.split()) for message in messages)
    return Usage(prompt, len(entry.content.split()))


def _kind(value: _Given) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
