"""What a store says of runs and sessions, and what gives the right to write them.

Not here: the store itself (`ports`), what a run did (`record`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run, as lists show it; `seq` and `updated` are seq and time of its newest record.

    `status` is `queued`, `running` or the terminal event's name. `may_be_truncated` says that the
    store was not always up since the run began to be driven: its record may be another than it
    was, after where a new owner found that. Times are seconds since the epoch.
    """

    run_id: str
    session_id: str
    created: float
    status: str
    seq: int = 1
    updated: float = 0.0
    may_be_truncated: bool = False


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
    """The right to write the runs of a session; nobody else has it.

    `token` is its fence: random, and new with each claim. A write under any token but the newest
    is refused, whether or not its lease has run out.
    """

    session_id: str
    token: str


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What tells a request that is sent again from a new one: its key, and its body's hash."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that was accepted. With a `lease` its session was free, and is the opener's now.

    Of a request that was sent again the run is the one that it began the first time.
    """

    entry: RunEntry
    lease: Lease | None
    is_new: bool = True
