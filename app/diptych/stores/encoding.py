"""Encodes records, messages, signals, notices and accounts as bytes, for external stores.

Fields added by a newer version are ignored; its new event types are passed on unchanged.
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from diptych.core.budget import from_integers, to_integers
from diptych.core.codec import Record, decode, encode
from diptych.core.errors import LoopError
from diptych.core.events import ApprovalDecided, InputReceived, MessageQueued, QueueCleared, Signal
from diptych.core.json_values import decode_message, encode_message
from diptych.core.messages import Message
from diptych.core.state import MAX_MESSAGES_PER_RUN
from diptych.ports import Notice
from diptych.stores.ledger import AccountState

dumps, loads = orjson.dumps, orjson.loads
MOST_SIGNALS = {
    MessageQueued: MAX_MESSAGES_PER_RUN,
    QueueCleared: 2 * MAX_MESSAGES_PER_RUN,
    ApprovalDecided: 2 * MAX_MESSAGES_PER_RUN,
    InputReceived: 2 * MAX_MESSAGES_PER_RUN,
}
"""Maximum number of a run's unlogged signals when one of these is added; other signals, which end
the run, are always accepted."""


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


def encode_account(state: AccountState) -> bytes:
    """Encode an account, with money as integers, which may exceed 64 bits."""
    row: dict[str, Any] = {
        "used": to_integers(state.used),
        "reserved": {
            entry: [until, *to_integers(amount)]
            for entry, (until, amount) in state.reserved.items()
        },
        "runs": {run_id: to_integers(used) for run_id, used in state.runs.items()},
    }
    return json.dumps(row).encode()


def decode_account(encoded: bytes) -> AccountState:
    """Decode an account; no bytes are a new one."""
    if not encoded:
        return AccountState()
    row = json.loads(encoded)
    return AccountState(
        from_integers(row["used"]),
        {entry: (each[0], from_integers(each[1:])) for entry, each in row["reserved"].items()},
        {run_id: from_integers(used) for run_id, used in row["runs"].items()},
    )


def _no_blob(key: str) -> bytes:
    """Fail to read a blob: signals have none."""
    raise KeyError(key)
