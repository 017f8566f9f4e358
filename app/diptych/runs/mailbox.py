"""The mailbox of a run: messages sent before it had a runner, and what clears them."""

from collections.abc import Iterable, Sequence

from diptych.core.events import MessageQueued, QueueCleared, Signal
from diptych.core.state import MAX_MESSAGES_PER_RUN


class Mailbox:
    """Keeps messages in order of arrival, each once."""

    def __init__(self) -> None:
        self._items: dict[str, MessageQueued | QueueCleared] = {}

    def put(self, item: MessageQueued | QueueCleared) -> bool:
        """Add a message, or what clears those before it. False if there are too many."""
        key = _key(item)
        alike = sum(type(other) is type(item) for other in self._items.values())
        if key not in self._items and alike >= MAX_MESSAGES_PER_RUN:
            return False
        self._items.setdefault(key, item)
        return True

    def take(self) -> Sequence[MessageQueued | QueueCleared]:
        """Take all of them."""
        items, self._items = self._items, {}
        return tuple(items.values())

    @property
    def items(self) -> Sequence[MessageQueued | QueueCleared]:
        """All of them, in order of arrival."""
        return tuple(self._items.values())


def still_queued(items: Iterable[Signal]) -> Sequence[MessageQueued]:
    """Give the messages among signals, in order of arrival, that no later one clears."""
    queued: dict[str, MessageQueued] = {}
    for item in items:
        if isinstance(item, QueueCleared):
            queued.clear()
        elif isinstance(item, MessageQueued):
            queued.setdefault(item.message_id, item)
    return tuple(queued.values())


def cleared_by(items: Iterable[Signal], clear_id: str) -> Sequence[MessageQueued]:
    """Give the messages among signals that one of them clears."""
    before: list[Signal] = []
    for item in items:
        if isinstance(item, QueueCleared) and item.clear_id == clear_id:
            break
        before.append(item)
    return still_queued(before)


def _key(item: MessageQueued | QueueCleared) -> str:
    return f"clear {item.clear_id}" if isinstance(item, QueueCleared) else item.message_id
