"""Runs that survive their process: the event log, sessions, leases and feed in Redis 7.

Keys, all under the prefix; `R` stands for a run's id, `S` for a session's:

    epoch           the name of this store's life; gone when the store was emptied
    log:R           stream of records, ids `<seq>-0`; expires with its session
    run:R           hash: session, created, updated, status, seq, server, lost, deaths, blob;
                    outlives the stream by a day, so that *expired* and *never was* differ
    asked:R         list of the signals that its owner has not seen the end of
    session:S       hash: created, updated, events, refreshed
    runs:S          sorted set of its runs, by the order in which they were opened
    queue:S         list of its runs that are not finished
    said:S          list: each finished run's id, and the messages that it adds, as JSON
    lease:S         token of its owner; expires
    fence:S         token of its newest owner: a write under any other is refused
    order           how many runs were opened so far
    sessions        sorted set of sessions, by the last time a run was opened or finished
    active          set of sessions that have unfinished runs
    due             sorted set of queued runs with a deadline, by that
    index           sorted set of all runs, by the order in which they were opened
    status:X        sorted set of the runs with this status, by the ms of their last record
    budget:A, settled:E, ended:A:R
                    accounts of the ledger, and what is known for a while: see budgets.py
    blob:H          what many runs share, by its hash
    once:K          hash: run and digest of the body for an idempotency key, for a day

Channels: `told:R` (records, with their owner's token, and notices) and `control` (signals, and
sessions that are handed over).
"""

from diptych.stores.redis.settings import RedisSettings
from diptych.stores.redis.store import RedisStore

__all__ = ["RedisSettings", "RedisStore"]
