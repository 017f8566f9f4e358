"""Messages to a run as its records and signals have them: taken, queued, cleared."""

from collections.abc import Iterable, Sequence
from typing import cast

from diptych.core.codec import Record, event_of, is_terminal
from diptych.core.errors import IdempotencyMismatch, RunEnded, TooManyMessages
from diptych.core.events import MessageQueued, Signal
from diptych.core.state import MAX_MESSAGES_PER_RUN


def is_recorded(message: MessageQueued, records: Sequence[Record]) -> bool:
    """Whether a message is among a run's records. Raises as `RunService.send_message` does."""
    recorded = recorded_messages(records)
    if is_among(message, recorded):
        return True
    if is_terminal(records[-1]):
        raise RunEnded
    if len(recorded) >= MAX_MESSAGES_PER_RUN:
        raise TooManyMessages
    return False


def is_among(message: MessageQueued, others: Iterable[Signal]) -> bool:
    """Whether a message is among others. Raises `IdempotencyMismatch` if its id came otherwise."""
    for other in others:
        if isinstance(other, MessageQueued) and other.message_id == message.message_id:
            if (other.message, other.is_follow_up) != (message.message, message.is_follow_up):
                raise IdempotencyMismatch
            return True
    return False


def recorded_messages(records: Sequence[Record]) -> list[MessageQueued]:
    """List the messages that were sent to a run after its start, as far as they are on record."""
    return [cast("MessageQueued", event_of(r)) for r in records if "message_id" in r.metadata]


def cleared_messages(clear_id: str, records: Sequence[Record]) -> Sequence[MessageQueued] | None:
    """Give the messages that a request cleared; None while it is not on record.

    Raises `RunEnded` for a run that ended without it.
    """
    cleared = next((r for r in records if r.metadata.get("clear_id") == clear_id), None)
    if cleared is not None:
        ids = cast("Sequence[str]", cleared.content)
        by_id = {message.message_id: message for message in recorded_messages(records)}
        return tuple(by_id[each] for each in ids)
    if is_terminal(records[-1]):
        raise RunEnded
    return None


def is_of_queue(record: Record) -> bool:
    """Whether a record is of a message to a run that exists, or of clearing those."""
    return "message_id" in record.metadata or record.event_type == "queue_cleared"
