"""Limits the answers received from servers, each by itself and all in this process together.

Parsed JSON takes more memory than its text: `[{},{},…]` takes 24 times as much. So an answer is
counted by the memory that it would take parsed, estimated from its bytes before parsing.
"""

from collections.abc import AsyncIterable, Mapping

MAX_ANSWER_BYTES = 4 * 2**20
MAX_ANSWER_MEMORY = 32 * 2**20  # bytes, estimated
MAX_PROCESS_MEMORY = 64 * 2**20  # bytes, estimated, of all answers in memory at a time

_COSTS = ((b"{", 64), (b"[", 96), (b",", 40), (b":", 120), (b'"', 25))
"""CPython's memory in bytes per JSON token that starts or ends with the character: at least as
much as measured."""


class TooMuchReceived(Exception):
    """An answer exceeds a limit; `reason` says which, in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ReceiveBudget:
    """A limit on the memory of concurrent answers; `used` is the current sum."""

    def __init__(self, limit: int = MAX_PROCESS_MEMORY) -> None:
        self.limit = limit
        self.used = 0


ANSWERS = ReceiveBudget()
"""The budget of all answers in this process."""


class Received:
    """Counts one answer against its own limits and a budget.

    It keeps its part of the budget until `release`. `exceeded` says which limit was exceeded.
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
        """Count a chunk. Raises `TooMuchReceived`."""
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
        """Read and count a whole body. Raises `TooMuchReceived` as soon as it exceeds a limit."""
        body = bytearray()
        async for chunk in chunks:
            self.add(chunk)
            body += chunk
        return bytes(body)

    def release(self) -> None:
        """Return the memory to the budget; counting may start again."""
        self._budget.used -= self._memory
        self._bytes = self._memory = 0


async def read_bounded(chunks: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """Read a whole body. Raises `TooMuchReceived` as soon as it exceeds `max_bytes`."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise TooMuchReceived(f"its answer has more than {max_bytes} bytes")
    return bytes(body)


def is_compressed(headers: Mapping[str, str]) -> bool:
    """Whether a body is compressed, although our requests never accept that.

    `headers` must be case-insensitive.
    """
    return headers.get("content-encoding", "identity").strip().lower() != "identity"


def parsed_size(encoded: bytes) -> int:
    """Estimate the memory of JSON once parsed; never less than measured."""
    return len(encoded) + sum(cost * encoded.count(char) for char, cost in _COSTS)
