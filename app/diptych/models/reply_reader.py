"""Reads a reply, whole or streamed, within the time limits of its call."""

import asyncio
from collections.abc import Collection

import aiohttp
import orjson

from diptych.core.messages import Usage
from diptych.core.reading import RepetitionFilter
from diptych.models.connection import Limits
from diptych.models.decoding import DONE, ChunkDecoder, decode_reply
from diptych.models.failures import (
    AttemptFailure,
    ReportedError,
    failure_in_success,
    first_byte_timeout,
    idle_timeout,
    incomplete_reply,
    malformed_reply,
    total_timeout,
)
from diptych.net.received import ReceiveBudget, Received, TooMuchReceived
from diptych.net.sse import MEBIBYTE, SseParser, SseTooLong
from diptych.ports import Delta, Reply

MAX_REPLY_SIZE = 8 * MEBIBYTE  # bytes of a whole reply, characters of a streamed one
REPLIES = ReceiveBudget()  # shared by all whole replies that this process reads concurrently
RELEASE_TIMEOUT = 0.25  # seconds that a released body may take to end
TAIL_TIMEOUT = 2.0  # seconds for usage and `[DONE]` after the finish_reason
_REPEATED = 200  # minimum length of a repetition, in characters
_LONG_REPETITION = 4000  # characters


class TimedBody:
    """Reads a response body; closes the connection when a time limit is exceeded.

    The first line must end by `first_byte_deadline`. After that, each complete line extends the
    limit by `idle` seconds: a keep-alive comment counts, bytes trickling into one line do not
    (faults.md M5). Before the reply has started, a keep-alive extends it by `limits.first_byte`:
    llama.cpp sends one every 30 s while it processes a prompt. `limits.deadline` always applies;
    time that the consumer spends between two reads counts only towards the deadline.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        first_byte_deadline: float,
        idle: float,
        limits: Limits,
    ) -> None:
        self.response = response
        self.idle = idle
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._line_deadline: float | None = first_byte_deadline  # None between two lines
        self._has_begun = False

    async def read(self) -> bytes:
        """Return the bytes that have arrived; b"" at the end of the body.

        Raises `AttemptFailure` `model_timeout` or `model_cut`, and closes the connection.
        """
        if self._line_deadline is None:
            seconds = self.idle if self._has_begun else self._limits.first_byte
            self._line_deadline = self._loop.time() + seconds
        try:
            async with asyncio.timeout_at(min(self._line_deadline, self._limits.deadline)):
                chunk = await self.response.content.readany()
        except TimeoutError:
            self.response.close()
            raise self._timeout(self._line_deadline) from None
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # aiohttp 3.14 raises RuntimeError when broken framing closes the connection between
            # two reads. During a read it raises nothing, and the timeout applies.
            raise incomplete_reply() from error
        if b"\n" in chunk or b"\r" in chunk:
            self._line_deadline = None
            if not self._has_begun and not _is_keep_alive(chunk):
                self._has_begun = True
                self._limits.on_first_byte()
        return chunk

    async def read_all(self, received: Received, first: bytes) -> bytes:
        """Read to the end; `first` are bytes already read. All bytes are counted in `received`.

        Raises `AttemptFailure` as `read` does, and `TooMuchReceived`.
        """
        chunks, chunk = [], first or await self.read()
        while chunk:
            received.add(chunk)
            chunks.append(chunk)
            chunk = await self.read()
        return b"".join(chunks)

    def close(self) -> None:
        """Close the connection, unless the body has ended and it is back in the pool."""
        if not self.response.closed:
            self.response.close()

    def release(self) -> None:
        """Stop reading, but keep the connection if the body ends within `RELEASE_TIMEOUT`.

        After `[DONE]` the end of the body is usually one packet away. When it arrives, aiohttp
        returns the connection to the pool; otherwise the connection is closed.
        """
        if not self.response.closed:
            self._loop.call_later(RELEASE_TIMEOUT, self.close)

    def _timeout(self, line_deadline: float) -> AttemptFailure:
        if line_deadline >= self._limits.deadline:
            return total_timeout(self._limits.total)
        if not self._has_begun:
            return first_byte_timeout(self._limits.first_byte)
        return idle_timeout(self.idle)


class ReplyReader:
    """Reads a reply, streamed or whole, as the endpoint sends it.

    `names` are the functions offered in the request; `secrets` are redacted from failures.
    `is_whole`: no stream was requested. `is_cut`: the model kept repeating itself, so the rest was
    discarded.
    """

    def __init__(
        self,
        body: TimedBody,
        names: frozenset[str],
        secrets: Collection[str],
        *,
        is_whole: bool = False,
    ) -> None:
        self._body = body
        self._is_whole = is_whole or body.response.content_type == "application/json"
        self._names = names
        self._secrets = secrets
        self._events = SseParser()
        self._decoder = ChunkDecoder(names)
        self._size = 0
        self._has_begun = False  # something other than blank lines has arrived
        self.is_cut = False

    async def next(self) -> Delta:
        """Wait for the next text, reasoning or end of the reply. Raises `AttemptFailure`."""
        while True:
            delta = await self._piece()
            if delta.text or delta.reasoning or delta.finish_reason is not None:
                return delta

    async def read_all(self) -> Reply:
        """Return the whole reply, or its part up to where the model keeps repeating itself.

        Raises `AttemptFailure`.
        """
        received = Received(REPLIES, max_bytes=MAX_REPLY_SIZE)
        try:
            return await self._read_all(received)
        except TooMuchReceived as error:
            raise malformed_reply(f"a reply that is too large: {error.reason}") from None
        finally:
            received.release()

    def close(self) -> None:
        """Close the connection, or return it to the pool if the reply ended properly."""
        if self._decoder.is_done:
            self._body.release()
        else:
            self._body.close()

    async def _read_all(self, received: Received) -> Reply:
        texts: list[str] = []
        thoughts: list[str] = []
        runaway = _Runaway()
        calls = self._decoder.calls
        while True:
            delta = await self._piece()
            texts.append(delta.text)
            thoughts.append(delta.reasoning)
            received.add(delta.text.encode())
            reason, usage, found = delta.finish_reason, delta.usage, delta.calls
            if reason is None and runaway.feed(texts, delta.reasoning, calls.newest_arguments):
                self.is_cut = True
                reason, usage, found = "length", self._decoder.usage, calls.calls()
            if reason is not None:
                text, reasoning = "".join(texts), "".join(thoughts)
                return Reply(text, usage or Usage(), reason, reasoning, found)

    async def _read_whole(self, first: bytes = b"") -> Delta:
        received = Received(REPLIES, max_bytes=MAX_REPLY_SIZE)
        try:
            reply = decode_reply(await self._body.read_all(received, first), self._names)
            return Delta(reply.text, reply.reasoning, reply.usage, reply.finish_reason, reply.calls)
        finally:
            received.release()

    async def _piece(self) -> Delta:
        """Return the content of one network read, perhaps empty."""
        try:
            return await (self._read_whole() if self._is_whole else self._read_streamed())
        except ReportedError as error:
            raise failure_in_success(error.report, self._secrets) from None
        except TooMuchReceived as error:
            raise malformed_reply(f"a reply that is too large: {error.reason}") from None
        except SseTooLong as error:
            raise malformed_reply("an event of more than 1 MiB") from error

    async def _read_streamed(self) -> Delta:
        decoder = self._decoder
        if decoder.finish_reason is not None:
            self._body.idle = min(self._body.idle, TAIL_TIMEOUT)
        try:
            chunk = await self._body.read()
        except AttemptFailure:
            if not decoder.is_complete:
                raise
            chunk = b""  # at most the usage is missing
        if not chunk:
            return self._final_delta(*self._trailing_event())
        if not self._has_begun and (begun := chunk.strip()):
            self._has_begun = True
            if begun[:1] in {b"{", b"["}:  # some gateways label a whole reply as a stream
                return await self._read_whole(chunk)
        text, reasoning = decoder.apply(self._events.feed(chunk))
        self._size += len(text) + len(reasoning)
        if self._size + decoder.calls.size > MAX_REPLY_SIZE:
            raise malformed_reply(f"a reply of more than {MAX_REPLY_SIZE} characters")
        return self._final_delta(text, reasoning) if decoder.is_done else Delta(text, reasoning)

    def _trailing_event(self) -> tuple[str, str]:
        """Read the last event if it lacks only its blank line; drop an incomplete one."""
        try:
            events = self._events.finish()
        except SseTooLong:
            return "", ""
        return self._decoder.apply(
            [event for event in events if event[0] == "error" or _is_whole(event[1])]
        )

    def _final_delta(self, text: str, reasoning: str) -> Delta:
        decoder = self._decoder
        if decoder.is_complete:
            reason = decoder.finish_reason or "stop"
            return Delta(text, reasoning, decoder.usage, reason, decoder.calls.calls())
        if self._body.response.content_type != "text/event-stream" and not decoder.has_choice:
            raise malformed_reply("something other than an event stream")
        raise incomplete_reply()


class _Runaway:
    """Detects that the model keeps repeating itself, so that the rest is useless (loop.md §12).

    Text that may contain calls is read a while longer: a repeated call is made once.
    """

    def __init__(self) -> None:
        self._text, self._thought = RepetitionFilter(), RepetitionFilter()
        self._after_repetition = 0
        self._seen_arguments = 0

    def feed(self, texts: list[str], thought: str, arguments: str) -> bool:
        """Take the texts so far, of which the last is new, new reasoning, and the newest arguments.

        Returns True when the reply should be cut.
        """
        if thought:
            self._thought.feed(thought)
        self._text.feed(texts[-1])
        if self._text.is_cut:
            self._after_repetition += len(texts[-1])
            may_be_calls = "{" in "".join(texts)[-_REPEATED:]
            if not may_be_calls or self._after_repetition > _LONG_REPETITION:
                return True
        return self._thought.is_cut or self._repeats(arguments)

    def _repeats(self, arguments: str) -> bool:
        """Whether the last 4,000 characters repeat; shorter repetitions are normal in files."""
        if not arguments or abs(len(arguments) - self._seen_arguments) < _REPEATED:
            return False
        self._seen_arguments = len(arguments)
        end = arguments[-_LONG_REPETITION:]
        unit = len(end) - _REPEATED - end.rfind(end[-_REPEATED:], 0, -1)
        return len(end) == _LONG_REPETITION and end[unit:] == end[:-unit] and unit <= len(end) // 5


def _is_keep_alive(lines: bytes) -> bool:
    """Whether all lines are blank or comments of server-sent events."""
    return all(line[:1] in {b"", b":"} for line in map(bytes.strip, lines.splitlines()))


def _is_whole(data: bytes) -> bool:
    """Whether an unterminated event is complete nevertheless."""
    if data == DONE:
        return True
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
