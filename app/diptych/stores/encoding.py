"""Encodes records, messages, signals and notices as bytes, for external stores.

Fields added by a newer version are ignored; its new event types are passed on unchanged.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from diptych.core.codec import Record, decode, encode
from diptych.core.errors import LoopError
from diptych.core.events import Signal
from diptych.core.json_values import decode_message, encode_message
from diptych.core.messages import Message
from diptych.ports import Notice

dumps, loads = orjson.dumps, orjson.loads


def encode_record(record: Record) -> bytes:
    """Encode a record without its run and session, which the store's keys contain."""
    row: dict[str, Any] = {
        "seq": record.seq,
        "event_type": record.event_type,
        "timestamp": record.timestamp,
        "content": record.content,
    }
    if record.metadata:
        row["metadata"] = record.metadata
    return dumps(row)


def decode_record(encoded: bytes, run_id: str, session_id: str) -> Record:
    """Decode a record of this run. Raises `ValueError`, `TypeError` or `KeyError`."""
    row = loads(encoded)
    metadata = row.get("metadata") or {}
    fields = (row["seq"], row["event_type"], row["timestamp"], row["content"], metadata)
    return Record(run_id, session_id, *fields)


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Encode the messages that a run adds to the conversation; b"" if there are none."""
    return dumps([encode_message(m) for m in messages]) if messages else b""


def decode_messages(encoded: bytes) -> tuple[Message, ...]:
    """Decode the messages of a run."""
    return tuple(map(decode_message, loads(encoded)))


def encode_signal(signal: Signal) -> bytes:
    """Encode a signal, as an event."""
    return dumps(encode(signal))


def decode_signal(encoded: bytes) -> Signal | None:
    """Decode a signal; None for one added by a newer version."""
    event_type, content, metadata = loads(encoded)
    try:
        event = decode(event_type, content, metadata, _no_blob)
    except LoopError:
        return None
    return event if isinstance(event, Signal) else None


def encode_notice(notice: Notice) -> bytes:
    """Encode a notice without its run, which its channel names."""
    return dumps([notice.type, notice.fields])


def decode_notice(encoded: bytes) -> Notice:
    """Decode a notice of this version or a newer one."""
    kind, fields, *_ = loads(encoded)
    return Notice(kind, fields)


def _no_blob(key: str) -> bytes:
    """Fail to read a blob: signals have none."""
    raise KeyError(key)
