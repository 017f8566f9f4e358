"""How records, messages, signals and notices are encoded in Redis.

Fields that a newer version adds are ignored; event types that it adds are passed on as they are.
What is read is checked: whoever else has the store may have written it.
"""

import logging
from collections.abc import Sequence
from typing import Any

import orjson

from diptych.core.codec import Record, decode, encode
from diptych.core.errors import LoopError
from diptych.core.events import Signal
from diptych.core.message_json import decode_message, encode_message
from diptych.core.messages import Message
from diptych.ports import Notice

_logger = logging.getLogger(__name__)


def encode_record(record: Record) -> bytes:
    """Encode a record without its run and session: those follow from its key."""
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
    """Decode a record of this run. Raises `ValueError` for what is none."""
    row = loads(encoded)
    match row:
        case {"seq": int(seq), "event_type": str(kind), "timestamp": float() | int() as time}:
            metadata = row.get("metadata") or {}
        case _:
            raise ValueError("it is no record")
    if seq < 1 or not isinstance(metadata, dict):
        raise ValueError("it is no record")
    return Record(run_id, session_id, seq, kind, time, row.get("content"), metadata)


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Encode what a run adds to the conversation; empty if it adds nothing."""
    if not messages:
        return b""
    return dumps([encode_message(m) for m in messages])


def decode_messages(encoded: bytes) -> tuple[Message, ...]:
    """Decode what `encode_messages` encoded, if it was not empty. Raises `ValueError`.

    A conversation holds no system text, so neither does what is read.
    """
    rows = loads(encoded)
    try:
        messages = tuple(map(decode_message, rows)) if isinstance(rows, list) else None
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError("it is no message") from error
    if messages is None or not all(map(_is_said, messages)):
        raise ValueError("it is no message")
    return messages


def _is_said(message: Message) -> bool:
    """Say whether all of a message has the type that it must have."""
    texts = [text for call in message.calls for text in (call.id, call.name, call.arguments)]
    texts += [message.content, message.reasoning, *message.sources]
    places = [number for place in message.results for number in place]
    return (
        message.role in {"user", "assistant", "tool"}
        and all(isinstance(text, str) for text in texts)
        and isinstance(message.call_id, str | None)
        and all(isinstance(part, dict) for part in message.parts)
        and all(isinstance(number, int) for number in (*places, message.keeps or 0))
    )


def encode_signal(signal: Signal) -> bytes:
    """Encode a signal as the event that it is."""
    return dumps(encode(signal))


def decode_signal(encoded: bytes) -> Signal | None:
    """Decode a signal; None for one that only a newer version knows, and for what is none."""
    try:
        event_type, content, metadata = loads(encoded)
        event = decode(event_type, content, metadata, _no_blob)
    except LoopError:
        return None
    except (ValueError, TypeError, LookupError, AttributeError):
        _logger.warning("a signal in the store is not ours, and is passed over")
        return None
    return event if isinstance(event, Signal) else None


def encode_notice(notice: Notice) -> bytes:
    """Encode a notice without its run: that follows from its channel."""
    return dumps([notice.type, notice.fields])


def decode_notice(encoded: bytes) -> Notice:
    """Decode a notice, of this version or a newer one."""
    kind, fields, *_ = loads(encoded)
    return Notice(kind, fields)


def dumps(value: object) -> bytes:
    """Encode JSON without line breaks. The runner keeps out of records what JSON cannot hold."""
    return orjson.dumps(value)


def loads(encoded: bytes) -> Any:  # noqa: ANN401 - the caller knows the form
    """Decode JSON. Raises `ValueError`."""
    return orjson.loads(encoded)


def _no_blob(key: str) -> bytes:
    """Read a blob for `decode`: signals have none."""
    raise KeyError(key)
