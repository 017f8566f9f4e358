"""The memory that requests, runs and answers may take together in this process, counted.

What is new is admitted while there is room; what was admitted may grow into the rest. So a peer
that asks for too much is refused, and what others do goes on unharmed. Sizes are estimates.
"""

import sys
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar

import orjson

from diptych.core.codec import Record
from diptych.core.errors import Overloaded, SubjectOverloaded
from diptych.core.messages import Message
from diptych.net.received import parsed_size

ADMITTED = 0.75  # of the limit; the rest is for what was admitted and grows
OF_A_SUBJECT = 0.5  # of what is admitted
RETRY_SECONDS = 1
RECORD_SIZE = 500  # bytes of a record or message, beside what it says
RUN_SIZE = 2**16  # bytes of an unfinished run, beside its record: its tasks, its state, its socket
_SMALL = 2**12  # bytes of JSON whose structure is not looked at


class MemoryBudget:
    """What is counted, against `limit` in bytes; None counts and never refuses."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.used = 0
        self.by_subject: Counter[str] = Counter()
        self.on_full: Callable[[], None] | None = None  # called when somebody finds no room

    def share(self, subject: str = "") -> "Share":
        """Give a part of the budget that holds nothing yet; a `subject` has a bound of its own."""
        return Share(self, subject)

    def has_room(self, size: int) -> bool:
        """Whether something new of this size may begin; anything may while nothing else is held."""
        return self.limit is None or not self.used or self.used + size <= ADMITTED * self.limit

    def check(self, size: int, subject: str = "") -> None:
        """Raise `Overloaded` or `SubjectOverloaded` if nothing new of this size may be held."""
        if self.limit is None:
            return
        most = ADMITTED * self.limit
        if size > most or not self.has_room(size):
            if self.on_full:
                self.on_full()
            message = "this agent has no memory left for more; try again later"
            raise Overloaded(message, retry_after=RETRY_SECONDS)
        held = self.by_subject[subject] if subject else 0
        if held and held + size > OF_A_SUBJECT * most:
            message = f"{subject} takes half of what this agent can hold, its limit"
            raise SubjectOverloaded(message, retry_after=RETRY_SECONDS)

    def can_ever_hold(self, size: int) -> bool:
        return self.limit is None or size <= ADMITTED * self.limit


class Share:
    """What one request, run or answer holds of a budget, until `release`."""

    __slots__ = ("_budget", "_subject", "size")

    def __init__(self, budget: MemoryBudget, subject: str) -> None:
        self._budget = budget
        self._subject = subject
        self.size = 0

    def admit(self, size: int) -> None:
        """Hold more, of something new. Raises `Overloaded` or `SubjectOverloaded`."""
        self._budget.check(size, self._subject)
        self.grow(size)

    def grow(self, size: int) -> None:
        """Hold more, of something that was admitted."""
        self.size += size
        self._budget.used += size
        if self._subject:
            self._budget.by_subject[self._subject] += size

    @property
    def is_beyond(self) -> bool:
        """Whether all together hold more than there is, and this more than its part of it."""
        limit = self._budget.limit
        return limit is not None and self._budget.used > limit and self.size > limit / 16

    def release(self) -> None:
        """Give everything back; the share may be used again."""
        self._budget.used -= self.size
        if self._subject:
            self._budget.by_subject[self._subject] -= self.size
            if self._budget.by_subject[self._subject] <= 0:
                del self._budget.by_subject[self._subject]
        self.size = 0


def text_size(text: str) -> int:
    """Estimate what a text takes with the copies that are made of it: stored, sent, on its way.

    One character beyond Latin makes a whole text take two or four bytes for each.
    """
    return sys.getsizeof(text) + 2 * len(text)


def json_size(encoded: bytes) -> int:
    """Estimate what a value takes, with its JSON; large ones are looked at more closely."""
    if len(encoded) < _SMALL:
        return 8 * len(encoded)
    return parsed_size(encoded) + 2 * len(encoded)


def record_size(record: Record) -> int:
    """Estimate what a record takes while its run is not finished."""
    content, metadata = record.content, record.metadata
    size = RECORD_SIZE
    if isinstance(content, str):
        size += text_size(content)
    elif content is not None:
        size += json_size(orjson.dumps(content))
    return size + json_size(orjson.dumps(metadata)) if metadata else size


def message_size(message: Message) -> int:
    """Estimate what a message of a conversation takes."""
    parts = json_size(orjson.dumps(message.parts)) if message.parts else 0
    return RECORD_SIZE + text_size(message.content) + parts


_current: ContextVar[Share | None] = ContextVar("share", default=None)


def current_share() -> Share:
    """Give what the request that is being answered holds; nothing refuses outside of one."""
    return _current.get() or MemoryBudget().share()


def set_share(share: Share) -> None:
    """Set the share for this task and what it starts."""
    _current.set(share)
