"""Whether a message that was sent to a run has reached its record.

Not here: sending it (`service`), what becomes of it (`loop.reducer`).
"""

from collections.abc import Sequence

from diptych.errors import IdempotencyMismatch, RunEnded, TooManyMessages
from diptych.loop.codec import Record
from diptych.loop.events import Steered
from diptych.loop.state import MAX_MESSAGES_PER_RUN
from diptych.runtime.buffer import is_terminal


def is_recorded(message: Steered, records: Sequence[Record]) -> bool:
    """Whether a message is among a run's records. Raises as `RunService.steer` does."""
    recorded = {r.metadata["message_id"]: r.content for r in records if is_message(r)}
    if message.message_id in recorded:
        if recorded[message.message_id] != message.message:
            raise IdempotencyMismatch
        return True
    if is_terminal(records[-1]):
        raise RunEnded
    if len(recorded) >= MAX_MESSAGES_PER_RUN:
        raise TooManyMessages
    return False


def is_message(record: Record) -> bool:
    """Whether a record is of a message that was sent to a run after its start."""
    return "message_id" in record.metadata
