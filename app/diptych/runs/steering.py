"""Messages sent to a run after its start: in its mailbox, in the store, and in the log."""

from collections.abc import Iterable, Sequence
from typing import cast

from diptych.core.codec import Record, event_of, is_terminal
from diptych.core.errors import IdempotencyMismatch, RunEnded, TooManyMessages
from diptych.core.events import MessageQueued, QueueCleared, Signal
from diptych.core.state import MAX_MESSAGES_PER_RUN


class Mailbox:
    """Messages and clear requests that arrived before a run began, without duplicates."""

    def __init__(self) -> None:
        self._items: dict[str, MessageQueued | QueueCleared] = {}

    @property
    def items(self) -> Sequence[MessageQueued | QueueCleared]:
        return tuple(self._items.values())

    def put(self, item: MessageQueued | QueueCleared) -> bool:
        """Add an item. Return False if there are too many of its kind."""
        key = f"clear {item.clear_id}" if isinstance(item, QueueCleared) else item.message_id
        alike = sum(type(other) is type(item) for other in self._items.values())
        if key not in self._items and alike >= MAX_MESSAGES_PER_RUN:
            return False
        self._items.setdefault(key, item)
        return True

    def take(self) -> Sequence[MessageQueued | QueueCleared]:
        items = self.items
        self._items = {}
        return items


def still_queued(items: Iterable[Signal]) -> Sequence[MessageQueued]:
    """Return the messages among signals that no later signal clears."""
    queued: dict[str, MessageQueued] = {}
    for item in items:
        if isinstance(item, QueueCleared):
            queued = {key: m for key, m in queued.items() if not item.clears(m)}
        elif isinstance(item, MessageQueued):
            queued.setdefault(item.message_id, item)
    return tuple(queued.values())


def cleared_by(asked: QueueCleared, items: Sequence[Signal]) -> Sequence[MessageQueued]:
    """Return the messages that one of the signals clears."""
    return [m for m in still_queued(items[: items.index(asked)]) if asked.clears(m)]


def is_recorded(message: MessageQueued, records: Sequence[Record]) -> bool:
    """Whether a message is logged. Raises as `RunSignals.send_message` does."""
    recorded = recorded_messages(records)
    if is_among(message, recorded):
        return True
    if is_terminal(records[-1]):
        raise RunEnded
    if len(recorded) >= MAX_MESSAGES_PER_RUN:
        raise TooManyMessages
    return False


def is_among(message: MessageQueued, others: Iterable[Signal]) -> bool:
    """Whether a message is among others. Raises `IdempotencyMismatch` if its id differs in text."""
    for other in others:
        if isinstance(other, MessageQueued) and other.message_id == message.message_id:
            if (other.message, other.is_follow_up) != (message.message, message.is_follow_up):
                raise IdempotencyMismatch
            return True
    return False


def recorded_messages(records: Sequence[Record]) -> list[MessageQueued]:
    """List the logged messages sent to a run after its start."""
    return [cast("MessageQueued", event_of(r)) for r in records if "message_id" in r.metadata]


def cleared_messages(clear_id: str, records: Sequence[Record]) -> Sequence[MessageQueued] | None:
    """Return the messages that a request cleared; None until it is logged.

    Raises `RunEnded`.
    """
    cleared = next((r for r in records if r.metadata.get("clear_id") == clear_id), None)
    if cleared is not None:
        by_id = {message.message_id: message for message in recorded_messages(records)}
        return tuple(by_id[each] for each in cast("Sequence[str]", cleared.content))
    if is_terminal(records[-1]):
        raise RunEnded
    return None


def is_of_queue(record: Record) -> bool:
    """Whether a record adds a message to the queue, or clears the queue."""
    return "message_id" in record.metadata or record.event_type == "queue_cleared"
