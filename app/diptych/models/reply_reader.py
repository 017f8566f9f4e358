"""Reads a reply: whole, or streamed as one `Delta` for what arrives together."""

from collections.abc import Collection

import orjson

from diptych.core.messages import Usage
from diptych.core.reading import RepetitionFilter
from diptych.models.decoding import ChunkDecoder, decode_reply
from diptych.models.failures import (
    AttemptFailure,
    ReportedError,
    failure_in_success,
    incomplete_reply,
    malformed_reply,
)
from diptych.models.timed_body import TimedBody
from diptych.net.received import ReceiveBudget, Received, TooMuchReceived
from diptych.net.sse import MEBIBYTE, SseEvent, SseParser, SseTooLong
from diptych.ports import Delta, Reply

MAX_REPLY_SIZE = 8 * MEBIBYTE  # bytes of a whole reply, characters of a streamed one
REPLIES = ReceiveBudget()  # of all whole replies that this process reads at a time
_REPEATED = 200  # characters, at least, of what is repeated
_LONG_REPETITION = 4000  # characters
TAIL_TIMEOUT = 2.0  # seconds, for usage and `[DONE]` after the finish_reason


async def read_whole(body: TimedBody, names: frozenset[str], secrets: Collection[str]) -> Reply:
    """Read a whole reply; `names` are the functions on offer. Raises `AttemptFailure`."""
    received = Received(REPLIES, max_bytes=MAX_REPLY_SIZE)
    try:
        return _decode_whole(await body.read_all(received), names, secrets)
    finally:
        received.release()


def _decode_whole(body: bytes, names: frozenset[str], secrets: Collection[str]) -> Reply:
    try:
        return decode_reply(body, names)
    except ReportedError as error:
        raise failure_in_success(error.report, secrets) from None


class ReplyReader:
    """Reads a streamed reply; also a whole one, of an endpoint that does not stream.

    `names` are the functions on offer; `secrets` are left out of what failures quote.
    """

    def __init__(self, body: TimedBody, names: frozenset[str], secrets: Collection[str]) -> None:
        self._body = body
        self._names = names
        self._secrets = secrets
        self._events = SseParser()
        self._decoder = ChunkDecoder(names)
        self._size = 0
        self._before_events: bytearray | None = bytearray()  # what came before the first one
        self.is_cut = False  # it was left where the model repeats itself

    async def next(self) -> Delta:
        """Give what arrives next, as one `Delta`. Raises `AttemptFailure`."""
        if self._body.response.content_type == "application/json":
            return _as_delta(await read_whole(self._body, self._names, self._secrets))
        self._body.extend_deadline()
        try:
            return await self._next()
        except ReportedError as error:
            raise failure_in_success(error.report, self._secrets) from None

    async def read_all(self) -> Reply:
        """Return the whole reply, or the part before the model begins to repeat itself.

        Raises `AttemptFailure`.
        """
        if self._body.response.content_type == "application/json":
            return await read_whole(self._body, self._names, self._secrets)
        received = Received(REPLIES, max_bytes=MAX_REPLY_SIZE)
        try:
            return await self._read_all(received)
        except ReportedError as error:
            raise failure_in_success(error.report, self._secrets) from None
        except TooMuchReceived as error:
            raise malformed_reply(f"a reply that is too large: {error.reason}") from None
        finally:
            received.release()

    async def _read_all(self, received: Received) -> Reply:
        texts: list[str] = []
        thoughts: list[str] = []
        runaway = _Runaway()
        decoder, is_last = self._decoder, False
        while not is_last:
            text, thought, is_last = await self._pieces()
            if text:
                received.add(text.encode())
            texts.append(text)
            thoughts.append(thought)
            if not is_last and runaway.feed(texts, thought, decoder.newest_arguments):
                self.is_cut = True
                usage = decoder.usage or Usage()
                return Reply("".join(texts), usage, "length", "".join(thoughts), decoder.calls)
        last = self._final_delta("".join(texts), "".join(thoughts))
        return Reply(
            last.text, last.usage or Usage(), last.finish_reason or "", last.reasoning, last.calls
        )

    async def _next(self) -> Delta:
        while True:
            text, reasoning, is_last = await self._pieces()
            if is_last:
                return self._final_delta(text, reasoning)
            if text or reasoning:
                return Delta(text, reasoning)

    async def _pieces(self) -> tuple[str, str, bool]:
        """Give text and reasoning of what arrives next, and whether nothing follows."""
        chunk = await self._read()
        if not chunk:
            return *self._trailing_event(), True
        text, reasoning = self._decoder.apply(self._events_in(chunk))
        self._size += len(text) + len(reasoning)
        if self._size + self._decoder.calls_size > MAX_REPLY_SIZE:
            raise malformed_reply(f"a reply of more than {MAX_REPLY_SIZE} characters")
        return text, reasoning, self._decoder.is_done

    def close(self) -> None:
        """Close the connection; if the reply has ended properly, it may be used again."""
        if self._decoder.is_done:
            self._body.release()
        else:
            self._body.close()

    async def _read(self) -> bytes:
        if self._decoder.finish_reason is not None:
            self._body.idle = min(self._body.idle, TAIL_TIMEOUT)
            self._body.extend_deadline()
        try:
            return await self._body.read()
        except AttemptFailure:
            if self._decoder.is_complete:
                return b""  # only usage may be missing
            raise

    def _events_in(self, chunk: bytes) -> list[SseEvent]:
        try:
            events = self._events.feed(chunk)
        except SseTooLong as error:
            raise malformed_reply("an event of more than 1 MiB") from error
        if self._before_events is not None:
            self._before_events += chunk
            if events or len(self._before_events) > MEBIBYTE:  # many comments are no reply
                self._before_events = None
        return events

    def _trailing_event(self) -> tuple[str, str]:
        """Read the last event, which no blank line ends; an incomplete one is left out."""
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
            return Delta(text, reasoning, decoder.usage, reason, decoder.calls)
        if self._before_events:
            # Some gateways send a whole reply, or an error, under the name of a stream.
            unframed = bytes(self._before_events).strip()
            if unframed[:1] in {b"{", b"["} and _is_whole(unframed):
                return _as_delta(_decode_whole(unframed, self._names, self._secrets))
        if self._body.response.content_type != "text/event-stream" and not decoder.has_choice:
            raise malformed_reply("something that is no event stream")
        raise incomplete_reply()


class _Runaway:
    """Says when there is no use in reading on: the model repeats itself (loop.md §12).

    What may be whole calls is read on for a while: one that is repeated is made once.
    """

    def __init__(self) -> None:
        self._text, self._thought = RepetitionFilter(), RepetitionFilter()
        self._after_repetition = 0
        self._seen_arguments = 0

    def feed(self, texts: list[str], thought: str, arguments: str) -> bool:
        """Take the text so far, whose last piece is new; the next thought; a call's arguments."""
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
        """Say whether the last 4,000 characters repeat themselves: files may have fewer."""
        if not arguments or abs(len(arguments) - self._seen_arguments) < _REPEATED:
            return False
        self._seen_arguments = len(arguments)
        end = arguments[-_LONG_REPETITION:]
        unit = len(end) - _REPEATED - end.rfind(end[-_REPEATED:], 0, -1)
        return len(end) == _LONG_REPETITION and end[unit:] == end[:-unit] and unit <= len(end) // 5


def _as_delta(reply: Reply) -> Delta:
    return Delta(reply.text, reply.reasoning, reply.usage, reply.finish_reason, reply.calls)


def _is_whole(data: bytes) -> bool:
    """Say whether an event that nothing ends is one all the same."""
    if data == b"[DONE]":
        return True
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
