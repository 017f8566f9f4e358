"""The body of one model response, read under the clock of its call.

Not here: what the bytes mean, and the time until the response's headers are there.
"""

import asyncio

import aiohttp

from diptych.adapters.openai_chat.failures import (
    Failure,
    cut,
    first_byte_timeout,
    garbage,
    idle_timeout,
    total_timeout,
)

LINGER_SECONDS = 0.25
_CLOCK_STEP = 0.002  # uvloop's clock counts milliseconds; a timer may fire that much early


class TimedBody:
    """Reads a response body; closes the connection as soon as its time is up.

    Times are those of the running loop. Before the first line ends, the limit is `first_byte_at`.
    From then on each line that ends gives `idle` seconds more: a keep-alive comment counts, bytes
    that drip into one line do not (faults.md M5). `ends_at` is never passed. The time that a
    consumer takes between two reads counts only for `ends_at`.

    One timer serves all reads: `asyncio.timeout` would cost 4 µs each, as much as reading, and
    must not stay open across a `yield` anyway.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, first_byte_at: float, idle: float, ends_at: float
    ) -> None:
        self.response = response
        self.idle = idle
        self._loop = asyncio.get_running_loop()
        self._ends_at = ends_at
        self._has_line = False
        self._is_reading = False
        self._is_late = False
        self._due_at = min(first_byte_at, ends_at)
        self._timer = self._loop.call_at(self._due_at, self._look)
        self._timer_at = self._due_at

    async def read(self) -> bytes:
        """Give all bytes that are there, at least one; none at the end of the body.

        Raises `Failure`: `model_timeout` or `model_cut`. The connection is closed then.
        """
        self._is_reading = True
        try:
            chunk = await self.response.content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            # RuntimeError: what aiohttp 3.14 raises when broken framing has closed the connection
            # between two reads. During a read it says nothing, and the time runs out.
            if self._is_late:
                raise self._timeout() from None
            raise cut() from error
        finally:
            self._is_reading = False
        if b"\n" in chunk or b"\r" in chunk:
            self._has_line = True
            self.resume()
        return chunk

    async def read_all(self, limit: int) -> bytes:
        """Read to the end. Raises `Failure` as `read` does, and if there are more than `limit`."""
        chunks = []
        size = 0
        while chunk := await self.read():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise garbage(f"a reply of more than {limit} bytes")
        return b"".join(chunks)

    def resume(self) -> None:
        """Give the sender `idle` seconds from now, once it has sent a line."""
        if not self._has_line:
            return
        self._due_at = min(self._loop.time() + self.idle, self._ends_at)
        if self._due_at < self._timer_at:
            self._timer.cancel()
            self._set_timer(self._due_at)

    def close(self) -> None:
        """Close the connection, unless the body has ended: then it is back in the pool."""
        self._timer.cancel()
        if not self.response.closed:
            self.response.close()

    def leave(self) -> None:
        """Stop reading, and keep the connection if the body ends within a moment.

        After `[DONE]` the end of the body is mostly a packet away. aiohttp takes the connection
        back when it comes, without anyone waiting; servers that hold on to it are cut off.
        """
        self._timer.cancel()
        if not self.response.closed:
            self._loop.call_later(LINGER_SECONDS, self.close)

    def _look(self) -> None:
        now = self._loop.time() + _CLOCK_STEP
        if not self._is_reading and now < self._ends_at:
            self._set_timer(min(now + self.idle, self._ends_at))
        elif now < self._due_at:
            self._set_timer(self._due_at)
        else:
            self._is_late = True
            self.response.close()

    def _set_timer(self, at: float) -> None:
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._look)

    def _timeout(self) -> Failure:
        if self._due_at >= self._ends_at:
            return total_timeout()
        if not self._has_line:
            return first_byte_timeout()
        return idle_timeout(self.idle)
