"""The events of a run's queues: a message comes, or what waits is cleared."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diptych.core.messages import JSON


@dataclass(frozen=True, slots=True)
class MessageQueued:
    """Another message to a run that exists (loop.md §6).

    It joins as soon as possible; one that `is_follow_up` begins the next turn. A message that is
    sent again, under the same `message_id`, is taken once. `subject` is who sends it, "" if nobody
    knows. `notes` are as those of `RunRequested`.
    """

    message: str
    message_id: str
    subject: str = ""
    is_follow_up: bool = False
    notes: Mapping[str, JSON] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class QueueCleared:
    """Messages that waited, by their ids, are dropped: they never join the conversation.

    `clear_id` tells it from others: sent again, it clears once. `subject` is who cleared.
    """

    clear_id: str
    message_ids: tuple[str, ...] = ()
    subject: str = ""
