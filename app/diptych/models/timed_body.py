"""The body of one model response, read within the time limits of its call."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from diptych.models.failures import (
    AttemptFailure,
    first_byte_timeout,
    idle_timeout,
    incomplete_reply,
    malformed_reply,
    total_timeout,
)
from diptych.net.received import Received, TooMuchReceived

RELEASE_TIMEOUT = 0.25  # seconds that a released body may take to end
_CLOCK_RESOLUTION = 0.002  # uvloop's clock counts milliseconds; a timer may fire that much early


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an attempt may take: seconds to its first byte, and when the whole call must end.

    `deadline` is a time of the loop's clock, `total` the seconds of the call up to it.
    `on_first_byte` is called when the reply begins.
    """

    first_byte: float
    deadline: float
    total: float
    on_first_byte: Callable[[], None] = lambda: None


class TimedBody:
    """Reads a response body; closes the connection as soon as its time is up.

    Times are those of the running loop. Until the first line has ended, `first_byte_deadline`
    holds. After that, each line that ends allows `idle` seconds more: a keep-alive comment counts,
    bytes that drip into one line do not (faults.md M5). Before the reply has begun, a keep-alive
    allows `limits.first_byte` seconds more: llama.cpp sends one every 30 s while it reads a prompt.
    `limits.deadline` always holds. The time that the consumer takes between two reads counts only
    towards that.

    aiohttp's own `sock_read` cannot do that: every byte restarts it. `asyncio.timeout` for each
    read would cost 4 µs, as much as reading; so one timer serves all reads.
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
        self._deadline = deadline = limits.deadline
        self._has_line = self._has_begun = False
        self._is_reading = False
        self._is_timed_out = False
        self._read_deadline = min(first_byte_deadline, deadline)
        self._timer = self._loop.call_at(self._read_deadline, self._on_timer)
        self._timer_at = self._read_deadline

    async def read(self) -> bytes:
        """Give all bytes that have arrived, at least one; none at the end of the body.

        Raises `AttemptFailure`: `model_timeout` or `model_cut`. The connection is closed then.
        """
        self._is_reading = True
        try:
            chunk = await self.response.content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # RuntimeError: aiohttp 3.14 raises it when broken framing has closed the connection
            # between two reads. During a read it raises nothing, and the time runs out.
            if self._is_timed_out:
                raise self._timeout() from None
            raise incomplete_reply() from error
        finally:
            self._is_reading = False
        if b"\n" in chunk or b"\r" in chunk:
            self._has_line = True
            if not self._has_begun and not _is_keep_alive(chunk):
                self._has_begun = True
                self._limits.on_first_byte()
            self.extend_deadline()
        return chunk

    async def read_all(self, received: Received) -> bytes:
        """Read to the end, as far as `received` lets it, which counts before anything is parsed.

        Raises `AttemptFailure` as `read` does, and where a bound is exceeded.
        """
        chunks = []
        while chunk := await self.read():
            chunks.append(chunk)
            try:
                received.add(chunk)
            except TooMuchReceived as error:
                raise malformed_reply(f"a reply that is too large: {error.reason}") from None
        return b"".join(chunks)

    def extend_deadline(self) -> None:
        """Allow some seconds from now for the next line, once there was a first one."""
        if not self._has_line:
            return
        seconds = self.idle if self._has_begun else self._limits.first_byte
        self._read_deadline = min(self._loop.time() + seconds, self._deadline)
        if self._read_deadline < self._timer_at:
            self._timer.cancel()
            self._set_timer(self._read_deadline)

    def close(self) -> None:
        """Close the connection, unless the body has ended: then it is back in the pool."""
        self._timer.cancel()
        if not self.response.closed:
            self.response.close()

    def release(self) -> None:
        """Stop reading, and keep the connection if the body ends within `RELEASE_TIMEOUT`.

        After `[DONE]` the end of the body is usually one packet away. When it comes, aiohttp takes
        the connection back by itself; if it does not come, the connection is closed.
        """
        self._timer.cancel()
        if not self.response.closed:
            self._loop.call_later(RELEASE_TIMEOUT, self.close)

    def _on_timer(self) -> None:
        now = self._loop.time() + _CLOCK_RESOLUTION
        if not self._is_reading and now < self._deadline:
            self._set_timer(min(now + self.idle, self._deadline))
        elif now < self._read_deadline:
            self._set_timer(self._read_deadline)
        else:
            self._is_timed_out = True
            self.response.close()

    def _set_timer(self, at: float) -> None:
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _timeout(self) -> AttemptFailure:
        if self._read_deadline >= self._deadline:
            return total_timeout(self._limits.total)
        if not self._has_begun:
            return first_byte_timeout(self._limits.first_byte)
        return idle_timeout(self.idle)


def _is_keep_alive(lines: bytes) -> bool:
    """Whether lines hold nothing but blanks and comments of server-sent events."""
    return all(line[:1] in {b"", b":"} for line in map(bytes.strip, lines.splitlines()))
