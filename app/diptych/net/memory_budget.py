"""One limit on the memory that requests, runs and answers take together in this process.

New work is admitted while there is room; a reserve is kept for admitted work that grows. So a peer
that asks for too much is refused, and others are not affected. Sizes are high estimates.
"""

import sys
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar

import orjson

from diptych.core.codec import Record
from diptych.core.errors import Overloaded, SubjectOverloaded
from diptych.net.received import parsed_size

ADMITTED = 0.75  # share of the limit for new work; the rest is for admitted work that grows
OF_A_SUBJECT = 0.5  # one subject's share of that
RUN_SIZE = 2**16  # bytes of an unfinished run without its records: tasks, state, socket
_RECORD_SIZE = 500  # bytes of a record without its content
_RETRY_SECONDS = 1


class MemoryBudget:
    """Tracks the memory in use against `limit` in bytes; None counts but never refuses.

    A part of a `whole` counts there too, and needs room in both.
    """

    def __init__(self, limit: int | None = None, whole: "MemoryBudget | None" = None) -> None:
        self.limit = limit
        self.whole = whole
        self.used = 0
        self.by_subject: Counter[str] = Counter()
        self.on_full: Callable[[], None] | None = None  # called when work is refused

    def share(self, subject: str = "") -> "Share":
        """Return an empty share of the budget; each `subject` is also limited by itself."""
        return Share(self, subject)

    def part(self, share: float) -> "MemoryBudget":
        """Return the budget of one agent of several: it may take this share of the memory."""
        return MemoryBudget(None if self.limit is None else int(self.limit * share), self)

    def can_ever_hold(self, size: int) -> bool:
        return self.limit is None or size <= ADMITTED * self.limit

    def has_room(self, size: int) -> bool:
        """Whether new work of this size may start; always while nothing else is in use."""
        if self.whole and not self.whole.has_room(size):
            return False
        return not self.used or self.can_ever_hold(self.used + size)

    def take(self, size: int, subject: str = "") -> None:
        """Count memory in use, or with a negative size memory that is no longer."""
        self.used += size
        if subject:
            self.by_subject[subject] += size
            if self.by_subject[subject] <= 0:
                del self.by_subject[subject]
        if self.whole:
            self.whole.take(size)

    def check(self, size: int, subject: str = "") -> None:
        """Raise `Overloaded` or `SubjectOverloaded` if new work of this size may not start."""
        if self.limit is None:
            return
        if not (self.can_ever_hold(size) and self.has_room(size)):
            if self.on_full:
                self.on_full()
            message = "this agent has no memory left for more; try again later"
            raise Overloaded(message, retry_after=_RETRY_SECONDS)
        held = self.by_subject[subject] if subject else 0
        if held and held + size > OF_A_SUBJECT * ADMITTED * self.limit:
            message = f"{subject} uses half of this agent's memory, its limit"
            raise SubjectOverloaded(message, retry_after=_RETRY_SECONDS)


class Share:
    """The part of a budget that one request, run or connection holds, until `release`."""

    __slots__ = ("_budget", "_subject", "size")

    def __init__(self, budget: MemoryBudget, subject: str) -> None:
        self._budget = budget
        self._subject = subject
        self.size = 0

    def admit(self, size: int) -> None:
        """Take memory for new work. Raises `Overloaded` or `SubjectOverloaded`."""
        self._budget.check(size, self._subject)
        self.grow(size)

    def grow(self, size: int) -> None:
        """Take more memory, for admitted work."""
        self.size += size
        self._budget.take(size, self._subject)

    @property
    def is_beyond(self) -> bool:
        """Whether the limit is exceeded, and this share is a large part of it."""
        budget: MemoryBudget | None = self._budget
        while budget:
            limit = budget.limit
            if limit is not None and budget.used > limit and self.size > limit / 16:
                return True
            budget = budget.whole
        return False

    def release(self) -> None:
        """Return all memory to the budget; the share may be used again."""
        self._budget.take(-self.size, self._subject)
        self.size = 0


def json_size(encoded: bytes) -> int:
    """Estimate the memory of a JSON value: parsed, plus two copies of its text."""
    return parsed_size(encoded) + 2 * len(encoded)


def text_size(text: str) -> int:
    """Estimate the memory of a text with two copies: stored, sent.

    A single character beyond Latin-1 makes all characters of a `str` take two or four bytes.
    """
    return sys.getsizeof(text) + 2 * len(text)


def record_size(record: Record) -> int:
    """Estimate the memory of a record of an unfinished run."""
    size = _RECORD_SIZE
    if isinstance(record.content, str):
        size += text_size(record.content)
    elif record.content is not None:
        size += json_size(orjson.dumps(record.content))
    return size + json_size(orjson.dumps(record.metadata)) if record.metadata else size


_current: ContextVar[Share | None] = ContextVar("share", default=None)


def current_share() -> Share:
    """Return the share of the current request, or an unlimited one outside of requests."""
    return _current.get() or MemoryBudget().share()


def set_share(share: Share) -> None:
    """Set the share for this task and the tasks that it starts."""
    _current.set(share)
