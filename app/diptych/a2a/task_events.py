"""The events of a task in one piece, for a caller that missed them (decision 151)."""

from collections.abc import Sequence

import orjson
from a2a.types import Task
from google.protobuf.json_format import MessageToDict

from diptych.a2a import extension
from diptych.a2a.events import record_event
from diptych.core.codec import Record
from diptych.core.messages import JSON

MAX_BYTES = 512 * 1024  # of the newest events, as JSON


def add_events(task: Task, records: Sequence[Record]) -> Task:
    """Put the events of a task's own run into its metadata, the newest if there are too many."""
    events, size = list[JSON](), 0
    for record in reversed(records):
        told = record_event(record)
        if told is None:
            continue
        size += len(orjson.dumps(told))
        if size > MAX_BYTES:
            break
        events.append(told["event"])
    about = MessageToDict(task.metadata).get(extension.URI, {})
    told_events = extension.to_wire(events[::-1])
    task.metadata.update({extension.URI: {**about, "events": told_events}})
    return task
