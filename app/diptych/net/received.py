"""Bounds what others send back: for one answer, and for all answers that this process holds.

JSON takes more memory parsed than written: `[{},{},…]` takes 24 times as much. So an answer is
counted by the memory that it would take, estimated from its bytes before anything parses it.
"""

from collections.abc import AsyncIterable, Mapping

MAX_ANSWER_BYTES = 4 * 2**20
MAX_ANSWER_MEMORY = 32 * 2**20  # bytes, estimated
MAX_PROCESS_MEMORY = 64 * 2**20  # bytes, estimated, of all answers that are held at a time

_COSTS = ((b"{", 64), (b"[", 96), (b",", 40), (b":", 120), (b'"', 25))
"""Bytes that CPython takes for what each of these begins or ends: never less than measured."""


class TooMuchReceived(Exception):
    """An answer is over a bound; `reason` says over which, in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ReceiveBudget:
    """The memory that all answers of a process may take at a time; `used` is what they take."""

    def __init__(self, limit: int = MAX_PROCESS_MEMORY) -> None:
        self.limit = limit
        self.used = 0


ANSWERS = ReceiveBudget()
"""The budget of this process."""


class Received:
    """What was received of one answer, counted against its own bounds and a budget.

    It holds its part of the budget until `release`. Once a bound is exceeded it stays so.
    """

    def __init__(
        self, budget: ReceiveBudget = ANSWERS, *, max_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        self.exceeded: str | None = None
        self._budget = budget
        self._max_bytes = max_bytes
        self._bytes = 0
        self._memory = 0

    def add(self, chunk: bytes) -> None:
        """Count the next bytes. Raises `TooMuchReceived`."""
        memory = parsed_size(chunk)
        self._bytes += len(chunk)
        self._memory += memory
        self._budget.used += memory
        if self._bytes > self._max_bytes:
            self.exceeded = f"its answer has more than {self._max_bytes} bytes"
        elif self._memory > MAX_ANSWER_MEMORY:
            self.exceeded = f"its answer would take more than {MAX_ANSWER_MEMORY} bytes of memory"
        elif self._budget.used > self._budget.limit:
            self.exceeded = "all answers together take too much memory now"
        if self.exceeded:
            raise TooMuchReceived(self.exceeded)

    async def read(self, chunks: AsyncIterable[bytes]) -> bytes:
        """Read and count a whole body. Raises `TooMuchReceived` as soon as it is over a bound."""
        body = bytearray()
        async for chunk in chunks:
            self.add(chunk)
            body += chunk
        return bytes(body)

    def release(self) -> None:
        """Return the reserved bytes to the budget; counting may start again."""
        self._budget.used -= self._memory
        self._bytes = self._memory = 0


async def read_bounded(chunks: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """Read a whole body of a peer. Raises `TooMuchReceived` as soon as it has more bytes."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise TooMuchReceived(f"its answer has more than {max_bytes} bytes")
    return bytes(body)


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Whether a body would have to be inflated, which nobody asks for here.

    `headers` ignores case.
    """
    return headers.get("content-encoding", "identity").strip().lower() != "identity"


def parsed_size(encoded: bytes) -> int:
    """Estimate the bytes that JSON would take parsed: never less than measured."""
    return len(encoded) + sum(cost * encoded.count(char) for char, cost in _COSTS)
