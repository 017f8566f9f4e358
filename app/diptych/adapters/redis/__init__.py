"""Runs that survive their process: the event log, sessions, ownership and feed in Redis 7.

    store       all of it, as one object
      log  sessions  ownership  feed     a port each
        part      what they share
          link        the connection for commands   subscriber    the one for pub/sub
            places    where the master is           scripts       what runs inside Redis
            server    what it says of itself        wire          how values look there
              settings  what a URL means

Keys, all under the prefix; `R` stands for a run's id, `S` for a session's:

    epoch           names this store's life; gone when it was emptied
    log:R           stream of records, ids `<seq>-0`; expires with its session
    run:R           hash: session, created, updated, status, seq, server, lost, blob;
                    outlives the stream by a day, so that *expired* and *never was* differ
    session:S       hash: created, updated, events, refreshed
    runs:S          sorted set of its runs, in the order of their coming (`order` counts)
    queue:S         list of its runs that are not finished
    said:S          list: what each ended run said, as JSON
    lease:S         token of its owner; runs out
    fence:S         token of its newest owner: no other may write
    sessions        sorted set of sessions, by their last beginning or end of a run
    active          set of sessions that have work
    blob:H          what many runs share, by its hash
    once:K          hash: run and body's digest of an idempotency key, for a day

Channels: `told:R` (records, with their owner's token, and notices) and `control` (ends asked for).
"""

from diptych.adapters.redis.settings import RedisSettings
from diptych.adapters.redis.store import RedisStore

__all__ = ["RedisSettings", "RedisStore"]
