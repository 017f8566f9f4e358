"""Values of the store ports: run and session entries, leases, queue heads, idempotency keys."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run, as lists show it; `seq` and `updated` are seq and time of its newest record.

    `status` is `queued`, `running`, `input-required` or the terminal event's name.
    `may_be_truncated` says that the store has been down since the run started, so that newest
    records may have been lost and written anew. Times are seconds since the epoch.
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
    """Some of the runs of a list, and how many are in the list in all."""

    entries: Sequence[RunEntry]
    total: int


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A session, as lists show it; times are seconds since the epoch."""

    session_id: str
    runs: int
    events: int
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right to write the runs of a session.

    `token` is its fencing token: random, and new with each claim. A write under any other token
    than the newest is refused, whether or not the lease has run out.
    """

    session_id: str
    token: str


@dataclass(frozen=True, slots=True)
class QueueHead:
    """The run whose turn it is in a session, as far as it matters before anything of it is read.

    `size` is what its record, its session's conversation and its signals take in the store, in
    bytes; 0 where they need not be read. `deaths` is how many processes have died, or were cut
    off, while it was this run's turn with them.
    """

    run_id: str
    size: int = 0
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Identifies a request that is sent again: the caller's key, and the body's hash."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that was accepted. With a `lease` the session was free and belongs to the opener now.

    For a request that was sent again it is the run of the first time, and `is_new` is False.
    """

    entry: RunEntry
    lease: Lease | None
    is_new: bool = True
