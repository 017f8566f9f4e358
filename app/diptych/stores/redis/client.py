"""What the ports of the store share: the connection, the settings, and what refusals mean."""

import logging
from collections.abc import Iterable, Sequence

from diptych.core.errors import LeaseLost, LogTruncated, RequestError, RunLost, RunNotFound
from diptych.ports.entries import RunEntry
from diptych.ports.ids import epoch_of
from diptych.stores.redis.connection import MultiplexedConnection
from diptych.stores.redis.pipeline import Reply
from diptych.stores.redis.settings import RedisSettings

RUN_FIELDS = ("session", "created", "status", "seq", "updated", "server", "lost")
"""The fields of a run's hash that an entry needs; scripts give them in the same order."""

_logger = logging.getLogger(__name__)


class StoreClient:
    """What `event_log`, `sessions`, `leases` and `feed` inherit."""

    def __init__(self, settings: RedisSettings, connection: MultiplexedConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._lease_ms = max(1, int(settings.lease_seconds * 1000))
        self._retention_ms = max(1, int(settings.retention * 1100))  # +10 %: see expiry.lua
        self._blob_ms = 2 * self._retention_ms + 7 * 24 * 3600 * 1000

    def _key(self, kind: str, name: str) -> str:
        return f"{self._settings.prefix}:{kind}:{name}"

    def _entries(self, rows: Iterable[Sequence[Reply]]) -> list[RunEntry]:
        """Make entries of rows of a run's id and `RUN_FIELDS`; leave out what is none of ours."""
        entries = []
        for run_id, *fields in rows:
            try:
                entries.append(self._entry(run_id.decode(), fields))
            except (ValueError, TypeError, AttributeError):
                _logger.warning("a run's entry is not ours, and is left out: %r", run_id)
        return entries

    def _entry(self, run_id: str, fields: Sequence[Reply]) -> RunEntry:
        """Make an entry of `RUN_FIELDS`; the last two are missing in many runs."""
        session_id, created, status, seq, updated, server, lost = fields
        return RunEntry(
            run_id,
            session_id.decode(),
            float(created),
            status.decode(),
            int(seq),
            float(updated or created),  # runs of an early version have no `updated`
            self._has_moved(server) or lost is not None,
        )

    def _has_moved(self, server: Reply) -> bool:
        """Say whether a run was last driven on another server than the one that is connected."""
        return server is not None and server.decode() != self._connection.server.instance_id

    async def _missing_run(self, run_id: str) -> RequestError:
        """Give the error for a run that is not stored. Raises `StoreError`."""
        epoch = epoch_of(run_id)
        if epoch and epoch != await self._connection.refresh_epoch():
            return RunLost("the store of this run was emptied; start it again")
        return RunNotFound()


def expired_run() -> RunLost:
    """Give the error for a run that was stored here until it expired."""
    return RunLost("the record of this run is gone: it was kept for its time")


def raise_if_refused(reply: Sequence[Reply]) -> None:
    """Raise what a script's refusal of a write means."""
    match reply:
        case [b"ok", *_]:
            return
        case [b"stale"]:
            raise LeaseLost("another process has taken this session over")
        case [b"tail", seq]:
            raise LogTruncated(int(seq))
        case _:
            raise RunLost("the store has lost this run; start it again")
