"""What the store in memory holds of a run and of a session."""

from dataclasses import dataclass, field

import orjson

from diptych.core.codec import TERMINAL, Record
from diptych.core.messages import Message
from diptych.ports.entries import RunEntry, SessionEntry

_RECORD_BYTES = 400  # that a record takes beside its content, roughly


@dataclass(slots=True)
class StoredRun:
    """A run, its records and what they take in bytes; `blob` is the key of its offers."""

    session_id: str
    created: float
    records: list[Record] = field(default_factory=list)
    size: int = 0
    blob: str | None = None
    awaits_input: bool = False
    messages: tuple[Message, ...] = ()  # that it adds to the conversation

    @property
    def is_finished(self) -> bool:
        return bool(self.records) and self.records[-1].event_type in TERMINAL

    @property
    def status(self) -> str:
        if self.is_finished:
            return self.records[-1].event_type
        if self.awaits_input:
            return "input-required"
        return "running" if len(self.records) > 1 else "queued"

    @property
    def updated_ms(self) -> int:
        return int(self.records[-1].timestamp * 1000)

    def entry(self, run_id: str) -> RunEntry:
        seq, updated = len(self.records), self.records[-1].timestamp
        return RunEntry(run_id, self.session_id, self.created, self.status, seq, updated)


@dataclass(slots=True)
class StoredSession:
    """A session and its runs, the oldest first."""

    created: float
    updated: float
    runs: list[str] = field(default_factory=list)
    events: int = 0  # that `/memory/events` shows

    def entry(self, session_id: str) -> SessionEntry:
        return SessionEntry(session_id, len(self.runs), self.events, self.created, self.updated)


def size_of(record: Record) -> int:
    """Estimate what a record takes, in bytes."""
    content = record.content
    text = content.encode() if isinstance(content, str) else orjson.dumps(content)
    metadata = len(orjson.dumps(record.metadata)) if record.metadata else 0
    return _RECORD_BYTES + len(text) + metadata
