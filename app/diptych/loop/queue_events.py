"""The event of a run's queues beside the messages themselves: what waits is cleared.

Not here: the messages (`events.Steered`), the rules of the queues (`queues`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueCleared:
    """Messages that waited, by their ids, are dropped: they never join the conversation.

    `clear_id` tells it from others: sent again, it clears once. `subject` is who cleared.
    """

    clear_id: str
    message_ids: tuple[str, ...] = ()
    subject: str = ""
