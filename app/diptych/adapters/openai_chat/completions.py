"""A model behind an OpenAI-compatible `/chat/completions` endpoint; fulfils `ports.Model`.

Not here: one request (`endpoint`), the limits of reading its response (`timed_body`), the API's
JSON (`encoding`), what a failure is called (`failures`), and what a reply means (`loop.actions`).
Nowhere: other models to fall back on, and native tool calls.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

import aiohttp

from diptych.adapters.openai_chat.encoding import StreamedReply, decode_reply
from diptych.adapters.openai_chat.endpoint import (
    ChatEndpoint,
    open_session,
    proxy_from_environment,
)
from diptych.adapters.openai_chat.failures import AttemptFailure, incomplete_reply, malformed_reply
from diptych.adapters.openai_chat.timed_body import TimedBody
from diptych.config.settings import ModelConfig
from diptych.loop.messages import Message
from diptych.net.backoff import Backoff
from diptych.net.sse import MEBIBYTE, SseParser, SseTooLong
from diptych.ports import Delta, Reply

__all__ = ["ChatModel", "open_session", "proxy_from_environment"]

MAX_REPLY_SIZE = 8 * MEBIBYTE  # bytes of a whole reply, characters of a streamed one
MAX_ATTEMPTS = 3
INITIAL_DELAY = 0.25  # seconds, as all times here
MAX_DELAY = 8.0
MAX_RETRY_AFTER = 30.0
TAIL_TIMEOUT = 2.0  # for usage and `[DONE]` after the finish_reason

_T = TypeVar("_T")


class ChatModel:
    """A model, as a `ModelConfig` describes it.

    It makes up to `MAX_ATTEMPTS` attempts within the total timeout. It retries connections that
    fail, time out or break off before anything was yielded, and the statuses 429, 500, 502, 503,
    504 and 529. It honours Retry-After up to `MAX_RETRY_AFTER`.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: ModelConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        """Take a session from `open_session`; `random` gives a number in [0, 1) for jitter.

        Raises `ConfigError` if the endpoint is no HTTP URL.
        """
        self._endpoint = ChatEndpoint(session, settings)
        self._total = settings.timeouts.total
        self._sleep = sleep
        self._random = random

    async def complete(self, messages: Sequence[Message], index: int) -> Reply:  # noqa: ARG002
        """Ask for a whole reply; see `ports.Model`."""
        return await self._with_retries(self._request_whole, messages)

    async def stream(self, messages: Sequence[Message], index: int) -> AsyncGenerator[Delta, None]:  # noqa: ARG002
        """Ask for a streamed reply, one `Delta` for each network read; see `ports.Model`.

        Closing the iterator, or cancelling the task that waits for it, closes the connection.
        """
        stream, delta = await self._with_retries(self._request_stream, messages)
        try:
            yield delta
            while delta.finish_reason is None:
                delta = await stream.next()
                yield delta
        finally:
            stream.close()

    async def _with_retries(
        self,
        attempt: Callable[[Sequence[Message], float], Awaitable[_T]],
        messages: Sequence[Message],
    ) -> _T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._total
        backoff = Backoff(INITIAL_DELAY, MAX_DELAY, random=self._random)
        while True:
            try:
                return await attempt(messages, deadline)
            except AttemptFailure as failure:
                delay = self._retry_delay(failure, backoff)
                is_last = not failure.may_retry or backoff.retries == MAX_ATTEMPTS
                if is_last or loop.time() + delay >= deadline:
                    raise
            await self._sleep(delay)

    def _retry_delay(self, failure: AttemptFailure, backoff: Backoff) -> float:
        """Give the backoff's next delay, or what Retry-After says and up to a tenth more."""
        delay = backoff.next_delay()
        if failure.retry_after is not None:
            return min(failure.retry_after, MAX_RETRY_AFTER) * (1 + self._random() / 10)
        return delay

    async def _request_whole(self, messages: Sequence[Message], deadline: float) -> Reply:
        body = await self._endpoint.send(messages, deadline, streamed=False)
        try:
            return decode_reply(await body.read_all(MAX_REPLY_SIZE))
        finally:
            body.close()

    async def _request_stream(
        self, messages: Sequence[Message], deadline: float
    ) -> tuple["_ReplyStream", Delta]:
        body = await self._endpoint.send(messages, deadline, streamed=True)
        stream = _ReplyStream(body)
        try:
            if body.response.content_type == "application/json":
                return stream, await _whole_as_delta(body)
            return stream, await stream.next()
        except BaseException:
            stream.close()
            raise


async def _whole_as_delta(body: TimedBody) -> Delta:
    """Read the whole reply, or the error, of an endpoint that does not stream."""
    reply = decode_reply(await body.read_all(MAX_REPLY_SIZE))
    return Delta(reply.text, reply.reasoning, reply.usage, reply.finish_reason)


class _ReplyStream:
    """A streamed reply that is being read."""

    def __init__(self, body: TimedBody) -> None:
        self._body = body
        self._events = SseParser()
        self._reply = StreamedReply()
        self._size = 0

    async def next(self) -> Delta:
        """Give what arrives next, as one `Delta`. Raises `AttemptFailure`."""
        self._body.extend_deadline()
        while True:
            chunk = await self._read()
            if not chunk:
                return self._final_delta(*self._trailing_event())
            text, reasoning = self._reply.apply(self._events_in(chunk))
            self._size += len(text) + len(reasoning)
            if self._size > MAX_REPLY_SIZE:
                raise malformed_reply(f"a reply of more than {MAX_REPLY_SIZE} characters")
            if self._reply.is_done:
                return self._final_delta(text, reasoning)
            if text or reasoning:
                return Delta(text, reasoning)

    def close(self) -> None:
        """Close the connection; if the reply has ended properly, it may be used again."""
        if self._reply.is_done:
            self._body.release()
        else:
            self._body.close()

    async def _read(self) -> bytes:
        if self._reply.finish_reason is not None:
            self._body.idle = min(self._body.idle, TAIL_TIMEOUT)
            self._body.extend_deadline()
        try:
            return await self._body.read()
        except AttemptFailure:
            if self._reply.is_complete:
                return b""  # only usage may be missing
            raise

    def _events_in(self, chunk: bytes) -> list[bytes]:
        try:
            return [data for _, data, _ in self._events.feed(chunk) if data]
        except SseTooLong as error:
            raise malformed_reply("an event of more than 1 MiB") from error

    def _trailing_event(self) -> tuple[str, str]:
        """Read the last event, which no blank line ends; an incomplete one is left out."""
        try:
            return self._reply.apply([data for _, data, _ in self._events.finish() if data])
        except SseTooLong:
            return "", ""
        except AttemptFailure as failure:
            if failure.code != "model_garbage":
                raise
            return "", ""

    def _final_delta(self, text: str, reasoning: str) -> Delta:
        reply = self._reply
        if reply.is_complete:
            return Delta(text, reasoning, reply.usage, reply.finish_reason or "stop")
        if self._body.response.content_type != "text/event-stream" and not reply.has_choice:
            raise malformed_reply("something that is no event stream")
        raise incomplete_reply()
