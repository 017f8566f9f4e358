"""Reads what an agent says under our extension's URI in the metadata of A2A."""

from collections.abc import Sequence

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from diptych.a2a import extension
from diptych.core.messages import JSON

UNREADABLE: JSON = {"event": "", "used": ""}
"""Stands for what no JSON has, as NaN: an event and amounts that cannot be read either."""


def extension_value(metadata: Struct) -> JSON:
    """Give what stands under our URI; None if nothing does."""
    if extension.URI not in metadata.fields:
        return None
    try:
        value: JSON = MessageToDict(metadata.fields[extension.URI])
    except ValueError:
        return UNREADABLE
    found: JSON = extension.from_wire(value)
    return found


def events_with(metadata: Struct) -> Sequence[JSON]:
    """Give the events that a task has with it, each as it would be told by itself."""
    match extension_value(metadata):
        case {"events": list(events)}:
            return [{"event": event} for event in events]
        case _:
            return ()
