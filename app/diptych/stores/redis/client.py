"""The base class of the Redis store's parts, and the errors for refused writes."""

from collections.abc import Sequence

from diptych.core.errors import LeaseLost, LogTruncated, RequestError, RunLost, RunNotFound
from diptych.ports.ids import epoch_of
from diptych.stores.redis.connection import RedisConnection
from diptych.stores.redis.server import Reply
from diptych.stores.redis.settings import RedisSettings


class StoreClient:
    """The base class of event log, leases and feed."""

    def __init__(self, settings: RedisSettings, connection: RedisConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._lease_ms = max(1, int(settings.lease_seconds * 1000))
        self._retention_ms = max(1, int(settings.retention * 1100))  # +10 %: extended in steps
        self._blob_ms = 2 * self._retention_ms + 7 * 24 * 3600 * 1000

    def _key(self, kind: str, name: str) -> str:
        return f"{self._settings.prefix}:{kind}:{name}"

    async def _missing_run(self, run_id: str) -> RequestError:
        """Return the error for a run that is not stored. Raises `StoreError`."""
        epoch = epoch_of(run_id)
        if epoch and epoch != await self._connection.refresh_epoch():
            return RunLost("the store of this run was emptied; start it again")
        return RunNotFound()


def expired_run() -> RunLost:
    """Return the error for an expired run."""
    return RunLost("the record of this run is gone: its retention has passed")


def raise_if_refused(reply: Sequence[Reply]) -> None:
    """Raise the error for a write that a script refused."""
    match reply:
        case [b"ok", *_]:
            return
        case [b"stale"]:
            raise LeaseLost("another process has taken this session over")
        case [b"tail", seq]:
            raise LogTruncated(int(seq))
        case _:
            raise RunLost("the store has lost this run; start it again")
