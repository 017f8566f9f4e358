"""The rows of messages to a run, and of clearing those that wait, written and read."""

from collections.abc import Mapping
from typing import Any

from diptych.core.event_rows import Stored
from diptych.core.messages import JSON
from diptych.core.queue_events import MessageQueued, QueueCleared


def queue_row(event: MessageQueued | QueueCleared) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a message, or of the ids of those that were cleared; defaults are left out."""
    about: dict[str, JSON] = {"subject": event.subject} if event.subject else {}
    if isinstance(event, QueueCleared):
        return "queue_cleared", list(event.message_ids), {"clear_id": event.clear_id, **about}
    if event.is_follow_up:
        about["follow_up"] = True
    if event.notes:
        about["notes"] = dict(event.notes)
    return "user_message", event.message, {"message_id": event.message_id, **about}


def read_steered(content: Stored, metadata: Mapping[str, Any]) -> MessageQueued:
    """Read the row of a message back."""
    subject, is_follow_up = metadata.get("subject", ""), metadata.get("follow_up", False)
    notes = metadata.get("notes", {})
    return MessageQueued(content, metadata["message_id"], subject, is_follow_up, notes)


def read_cleared(content: Stored, metadata: Mapping[str, Any]) -> QueueCleared:
    """Read the row of what was cleared back."""
    return QueueCleared(metadata["clear_id"], tuple(content), metadata.get("subject", ""))
