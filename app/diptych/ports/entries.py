"""Values of the store ports: run and session entries, leases, queue heads, idempotency keys."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run in a list; `seq` and `updated` are seq and time of its newest record.

    `status` is `queued`, `running`, `input-required` or the terminal event's name.
    `may_be_truncated`: the store was down since the run started, so its newest records may have
    been lost and replaced by others. Times are Unix times in seconds.
    """

    run_id: str
    session_id: str
    created: float
    status: str
    seq: int = 1
    updated: float = 0.0
    may_be_truncated: bool = False


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of a list of runs, and the total number of runs in the list."""

    entries: Sequence[RunEntry]
    total: int


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A session in a list; times are Unix times in seconds."""

    session_id: str
    runs: int
    events: int
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right to write to the runs of a session.

    `token` is the fencing token: random, and new with each claim. Only writes with the newest
    token are accepted, whether or not the lease has expired.
    """

    session_id: str
    token: str


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The first run in a session's queue, with the facts needed before loading it.

    `size` is the bytes that its log, its session's conversation and its signals take in the store;
    0 if they need not be loaded. `deaths` counts the processes that died, or lost the store, while
    they were executing it.
    """

    run_id: str
    size: int = 0
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Identifies a repeated request: the caller's key, and the hash of the body."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An accepted run. With a `lease`, the session was free and is now owned by the opener.

    For a repeated request this is the original run, and `is_new` is False.
    """

    entry: RunEntry
    lease: Lease | None
    is_new: bool = True


TAKEN_SECONDS = 60.0
"""A push stays with the process that took it for so long, unless renewed."""


@dataclass(frozen=True, slots=True)
class Push:
    """Where a caller wants to be notified of a run; all up to the record `seq` has been sent.

    The `config`, which may hold secrets, means nothing to the store.
    """

    run_id: str
    config_id: str
    config: bytes
    seq: int = 0
