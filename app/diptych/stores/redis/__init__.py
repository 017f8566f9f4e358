"""The store in Redis 7, which outlives processes: event log, sessions, leases, feed and ledger.

Keys, all under the prefix; `R` stands for a run's id, `S` for a session's:

    epoch           id of the store's contents; gone when the store was emptied
    log:R           stream of records, ids `<seq>-0`; expires with its session
    run:R           hash: session, created, updated, status, seq, server, lost, deaths, blob;
                    outlives the log by a day, to distinguish expired from unknown runs
    signals:R       list of the signals that are not in the log yet
    pushes:R        hash: push notification configs, each after the seq of what was sent; expires
                    with log:R
    due_pushes      sorted set of unfinished pushes, by when another process takes them
    session:S       hash: created, updated, events, refreshed
    runs:S          sorted set of its runs, in the order in which they were opened
    queue:S         list of its unfinished runs
    messages:S      list: each finished run's id, and its messages as JSON
    lease:S         token of its owner; expires
    fence:S         token of its newest owner: writes with any other are refused
    order           number of runs opened so far
    sessions        sorted set of sessions, by the last time a run was opened or finished
    active          set of sessions with unfinished runs
    due             sorted set of queued runs with a deadline, by deadline
    index           sorted set of all runs, in the order in which they were opened
    status:X        sorted set of the runs with this status, by the ms of their last record
    budget:A, settled:E, ended:A:R
                    accounts of the ledger; recently settled entries and ended runs
    blob:H          data shared by many runs, by its hash
    once:K          hash: run and body digest of an idempotency key, for a day

Channels: `updates:R` (records with their owner's token, and notices) and `control` (signals, and
sessions handed over).
"""

from diptych.stores.redis.settings import RedisSettings
from diptych.stores.redis.store import RedisStore

__all__ = ["RedisSettings", "RedisStore"]
