"""How records, messages and the like look inside Redis.

What a newer version adds is passed over; what it names anew is carried as it is.

Not here: what a row means (`record`), where it lies (`scripts`).
"""

from collections.abc import Sequence
from typing import Any

import orjson

from diptych.errors import LoopError
from diptych.loop.codec import Record, decode, encode
from diptych.loop.events import Signal
from diptych.loop.messages import Message
from diptych.ports import Notice


def pack_record(record: Record) -> bytes:
    """Write a record; its run and session are known from where it lies."""
    row: dict[str, Any] = {
        "seq": record.seq,
        "event_type": record.event_type,
        "timestamp": record.timestamp,
        "content": record.content,
    }
    if record.metadata:
        row["metadata"] = record.metadata
    return dumps(row)


def read_record(packed: bytes, run_id: str, session_id: str) -> Record:
    """Read a record of this run back."""
    row = loads(packed)
    return Record(
        run_id,
        session_id,
        row["seq"],
        row["event_type"],
        row["timestamp"],
        row.get("content"),
        row.get("metadata") or {},
    )


def pack_said(said: Sequence[Message]) -> bytes:
    """Write what a run said; nothing, if it said nothing."""
    return dumps([{"role": m.role, "content": m.content} for m in said]) if said else b""


def read_said(packed: bytes) -> tuple[Message, ...]:
    """Read what a run said back."""
    return tuple(Message(m["role"], m["content"]) for m in loads(packed))


def pack_demand(demand: Signal) -> bytes:
    """Write what was asked of a run."""
    return dumps(encode(demand))


def read_demand(packed: bytes) -> Signal | None:
    """Read what was asked of a run; None for what only a newer version knows."""
    event_type, content, metadata = loads(packed)
    try:
        event = decode(event_type, content, metadata, _nothing_kept)
    except LoopError:
        return None
    return event if isinstance(event, Signal) else None


def pack_notice(notice: Notice) -> bytes:
    """Write a notice."""
    return dumps([notice.type, notice.fields])


def read_notice(packed: bytes) -> Notice:
    """Read a notice back."""
    kind, fields, *_ = loads(packed)
    return Notice(kind, fields)


def dumps(value: object) -> bytes:
    """Write JSON in one line; what records hold can be written (`texts`, `outgoing`)."""
    return orjson.dumps(value)


def loads(packed: bytes) -> Any:  # noqa: ANN401 - the form follows from the place
    """Read what `dumps` wrote. Raises `ValueError`."""
    return orjson.loads(packed)


def _nothing_kept(key: str) -> bytes:
    raise KeyError(key)
