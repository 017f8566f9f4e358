"""A model behind an OpenAI-compatible `/chat/completions` endpoint; fulfils `ports.Model`.

Not here: other models to fall back on, native tool calls, and whether a reply is any use.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

import aiohttp

from diptych.adapters.openai_chat.encoding import StreamedReply, whole_reply
from diptych.adapters.openai_chat.endpoint import (
    ChatEndpoint,
    open_session,
    proxy_from_environment,
)
from diptych.adapters.openai_chat.failures import Failure, cut, garbage
from diptych.adapters.openai_chat.timed_body import TimedBody
from diptych.config.settings import ModelConfig
from diptych.loop.messages import Message
from diptych.net.sse import MEBIBYTE, SseParser, SseTooLong
from diptych.ports import Delta, Reply

__all__ = ["ChatModel", "open_session", "proxy_from_environment"]

LONGEST_REPLY = 8 * MEBIBYTE
TRIES = 3
FIRST_BACKOFF = 0.25  # seconds, as all times here
LONGEST_BACKOFF = 8.0
LONGEST_RETRY_AFTER = 30.0
TAIL_SECONDS = 2.0  # how far usage and `[DONE]` may lag behind a finish_reason

_T = TypeVar("_T")


class ChatModel:
    """A model, as a `ModelConfig` describes it.

    Retries by itself, at most `TRIES` tries in all and never past the total timeout: connections
    that fail, time out or break off before anything was yielded, 429, 500, 502, 503, 504 and 529.
    Retry-After is honoured, up to `LONGEST_RETRY_AFTER`.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: ModelConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Take a session from `open_session`; `chance` gives a number in [0, 1) for jitter.

        Raises `ConfigError` if the endpoint is no HTTP URL.
        """
        self._endpoint = ChatEndpoint(session, settings)
        self._total = settings.timeouts.total
        self._sleep = sleep
        self._chance = chance

    async def complete(self, messages: Sequence[Message], index: int) -> Reply:  # noqa: ARG002
        """Ask for a whole reply; see `ports.Model`."""
        return await self._tried(self._ask_whole, messages)

    async def stream(self, messages: Sequence[Message], index: int) -> AsyncGenerator[Delta, None]:  # noqa: ARG002
        """Ask for a streamed reply, one `Delta` for each network read; see `ports.Model`.

        Closing the iterator, or cancelling who waits for it, closes the connection at once.
        """
        reading, delta = await self._tried(self._ask_streamed, messages)
        try:
            yield delta
            while delta.finish_reason is None:
                delta = await reading.next()
                yield delta
        finally:
            reading.close()

    async def _tried(
        self, ask: Callable[[Sequence[Message], float], Awaitable[_T]], messages: Sequence[Message]
    ) -> _T:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._total
        tries = 0
        while True:
            tries += 1
            try:
                return await ask(messages, ends_at)
            except Failure as failure:
                pause = self._pause(failure, tries)
                if not failure.again or tries == TRIES or loop.time() + pause >= ends_at:
                    raise
            await self._sleep(pause)

    def _pause(self, failure: Failure, tries: int) -> float:
        """Give the seconds to wait: as told and a little more, else a backoff with full jitter."""
        if failure.after is not None:
            return min(failure.after, LONGEST_RETRY_AFTER) * (1 + self._chance() / 10)
        return min(FIRST_BACKOFF * 2.0 ** (tries - 1), LONGEST_BACKOFF) * self._chance()

    async def _ask_whole(self, messages: Sequence[Message], ends_at: float) -> Reply:
        body = await self._endpoint.send(messages, ends_at, streamed=False)
        try:
            return whole_reply(await body.read_all(LONGEST_REPLY))
        finally:
            body.close()

    async def _ask_streamed(
        self, messages: Sequence[Message], ends_at: float
    ) -> tuple["_Reading", Delta]:
        body = await self._endpoint.send(messages, ends_at, streamed=True)
        reading = _Reading(body)
        try:
            if body.response.content_type == "application/json":
                return reading, await _unstreamed(body)
            return reading, await reading.next()
        except BaseException:
            reading.close()
            raise


async def _unstreamed(body: TimedBody) -> Delta:
    """Read a whole reply, or an error, from an endpoint that does not stream."""
    reply = whole_reply(await body.read_all(LONGEST_REPLY))
    return Delta(reply.text, reply.reasoning, reply.usage, reply.finish_reason)


class _Reading:
    """A streamed reply that is being read."""

    def __init__(self, body: TimedBody) -> None:
        self._body = body
        self._events = SseParser()
        self._reply = StreamedReply()
        self._size = 0

    async def next(self) -> Delta:
        """Give what arrives next, merged into one piece; raises `Failure`."""
        self._body.resume()
        while True:
            chunk = await self._read()
            if not chunk:
                return self._last(*self._rest())
            text, reasoning = self._reply.take(self._events_in(chunk))
            self._size += len(text) + len(reasoning)
            if self._size > LONGEST_REPLY:
                raise garbage(f"a reply of more than {LONGEST_REPLY} characters")
            if self._reply.is_done:
                return self._last(text, reasoning)
            if text or reasoning:
                return Delta(text, reasoning)

    def close(self) -> None:
        """Close the connection, unless the reply has ended properly."""
        if self._reply.is_done:
            self._body.leave()
        else:
            self._body.close()

    async def _read(self) -> bytes:
        if self._reply.finish_reason is not None:
            self._body.idle = min(self._body.idle, TAIL_SECONDS)
            self._body.resume()
        try:
            return await self._body.read()
        except Failure:
            if self._reply.is_whole:
                return b""  # only usage may be missing
            raise

    def _events_in(self, chunk: bytes) -> list[bytes]:
        try:
            return [data for _, data, _ in self._events.feed(chunk) if data]
        except SseTooLong as error:
            raise garbage("an event of more than 1 MiB") from error

    def _rest(self) -> tuple[str, str]:
        """Read the event that the body ended in; half an event is a cut, not garbage."""
        try:
            return self._reply.take([data for _, data, _ in self._events.finish() if data])
        except SseTooLong:
            return "", ""
        except Failure as failure:
            if failure.code != "model_garbage":
                raise
            return "", ""

    def _last(self, text: str, reasoning: str) -> Delta:
        reply = self._reply
        if reply.is_whole:
            return Delta(text, reasoning, reply.usage, reply.finish_reason or "stop")
        if self._body.response.content_type != "text/event-stream" and not reply.has_begun:
            raise garbage("something that is no event stream")
        raise cut()
