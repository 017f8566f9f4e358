"""A mock model that replays the script in `DEBUG_MOCK_RESPONSES` (loop.md §10).

Every run starts at the first reply: the n-th model call of a run gets the n-th reply. When the
script runs out, the run fails; no real model is ever called instead.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Self, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from diptych.core.errors import ConfigError, ModelCode, ModelError
from diptych.core.messages import Message, NativeCall, Usage
from diptych.core.model_request import ModelRequest
from diptych.core.text import well_formed
from diptych.ports import Delta, Model, Reply

VARIABLE = "DEBUG_MOCK_RESPONSES"
_CHUNK = re.compile(r"\s*\S+\s?|\s+")  # a word with the space after it


class _Scripted(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ScriptedCall(_Scripted):
    """A native call, in OpenAI's format or as just a name and arguments.

    `arguments` is an object, or raw text, which may be invalid on purpose.
    """

    name: str
    arguments: dict[str, Any] | str = {}
    id: str = ""
    type: Literal["function"] = "function"

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, call: Any) -> Any:  # noqa: ANN401 - not checked yet
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            return {**{k: v for k, v in call.items() if k != "function"}, **call["function"]}
        return call

    def native(self, number: int) -> NativeCall:
        """Return the `number`th call of a reply."""
        written = self.arguments
        text = written if isinstance(written, str) else orjson.dumps(written).decode()
        return NativeCall(self.id or f"call{number:05d}", self.name, text)


class ScriptedError(_Scripted):
    """An error: just a message, or an object with a code and token limits."""

    message: str
    code: ModelCode = "model_failed"
    max_tokens: int | None = None
    prompt_tokens: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, error: Any) -> Any:  # noqa: ANN401 - not checked yet
        return {"message": error} if isinstance(error, str) else error


class ScriptedUsage(_Scripted):
    """The token usage that a reply reports."""

    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)


class ScriptedReply(_Scripted):
    """One scripted reply; `delay_ms` passes before it, `chunk_ms` before each chunk."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ScriptedCall] = []
    finish_reason: str | None = None
    error: ScriptedError | None = None
    delay_ms: float = Field(default=0, ge=0)
    chunk_ms: float = Field(default=0, ge=0)
    usage: ScriptedUsage = ScriptedUsage()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_fields_set & {"content", "tool_calls", "error"}:
            raise ValueError('needs "content", "tool_calls" or "error"')
        if len({call.id for call in self.calls}) < len(self.tool_calls):
            raise ValueError("the ids of tool_calls must differ")
        return self

    @property
    def calls(self) -> tuple[NativeCall, ...]:
        """The native calls, each with an id."""
        return tuple(call.native(n) for n, call in enumerate(self.tool_calls, start=1))

    @property
    def reason(self) -> str:
        """The reply's finish reason."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")

    def counted(self, messages: Sequence[Message]) -> Usage:
        """Return the reply's usage; without one, count words, so that every run has a usage."""
        if self.usage != ScriptedUsage():
            return Usage(self.usage.prompt_tokens, self.usage.completion_tokens)
        prompt = sum(len(message.content.split()) for message in messages)
        said = (self.content or "", *(call.arguments for call in self.calls))
        return Usage(prompt, sum(len(text.split()) for text in said))


Script: TypeAlias = tuple[ScriptedReply, ...]


def read_script(value: str) -> Script:
    """Parse the variable's value. Raises `ConfigError` naming the first mistake."""
    if value != well_formed(value):
        raise ConfigError(f"{VARIABLE}: is not valid UTF-8")
    if not value.lstrip().startswith(("[", "{")):
        return (ScriptedReply(content=value),)
    try:
        replies = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{VARIABLE}: is not valid JSON: {error}") from error
    if not isinstance(replies, list):
        replies = [replies]
    if not replies:
        raise ConfigError(f"{VARIABLE}: the list is empty; add at least one reply")
    return tuple(_read_reply(n, reply) for n, reply in enumerate(replies))


def script_problems(source: str, value: str) -> tuple[str, ...]:
    """Return the problems of the variable's value; `source` says where it is set."""
    try:
        read_script(value)
    except ConfigError as error:
        place = source.removesuffix(VARIABLE)  # each problem starts with the name
        return tuple(f"{place}{problem}" for problem in error.problems)
    return ()


class ScriptedModel(Model):
    """Replays a script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, request: ModelRequest) -> Reply:
        reply = await self._play(request.index)
        usage = reply.counted(request.messages)
        text, reasoning = reply.content or "", reply.reasoning or ""
        return Reply(text, usage, reply.reason, reasoning, reply.calls)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        reply = await self._play(request.index)
        for chunk in _CHUNK.findall(reply.reasoning or ""):
            await asyncio.sleep(reply.chunk_ms / 1000)
            yield Delta(reasoning=chunk)
        for chunk in _CHUNK.findall(reply.content or ""):
            await asyncio.sleep(reply.chunk_ms / 1000)
            yield Delta(chunk)
        usage = reply.counted(request.messages)
        yield Delta(usage=usage, finish_reason=reply.reason, calls=reply.calls)

    async def _play(self, index: int) -> ScriptedReply:
        if index >= len(self._script):
            count = len(self._script)
            raise ModelError(
                "mock_exhausted",
                f"{VARIABLE} has {'1 reply' if count == 1 else f'{count} replies'}, and the run "
                "needs another one. Phase 1 comes first, and ends with a reply without a call: "
                '["{}", "Hello"]',
            )
        reply = self._script[index]
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        if (error := reply.error) is not None:
            limits = {"max_tokens": error.max_tokens, "prompt_tokens": error.prompt_tokens}
            raise ModelError(error.code, error.message, **limits)
        return reply


def _read_reply(number: int, reply: object) -> ScriptedReply:
    if isinstance(reply, str):
        return ScriptedReply(content=reply)
    try:
        return ScriptedReply.model_validate(reply)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_context=False)[0]
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in mistake["loc"])
        said = mistake["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{VARIABLE}[{number}]{''.join(steps)}: {said}") from error
