"""What the parts of the store share: the connection, the settings, and what refusals mean."""

from collections.abc import Sequence

from diptych.adapters.redis.connection import Link, Reply
from diptych.adapters.redis.settings import RedisSettings
from diptych.errors import LeaseLost, LogTruncated, RequestError, RunLost, RunNotFound
from diptych.ports.entries import RunEntry
from diptych.ports.run_ids import epoch_of

META = ("session", "created", "status", "seq", "updated", "server", "lost")
"""What is read of a run's hash, in this order; `open.lua` and `entries.lua` give the same."""


class Part:
    """A part of `store.RedisStore`."""

    def __init__(self, settings: RedisSettings, link: Link) -> None:
        self._settings = settings
        self._link = link
        self._lease_ms = max(1, int(settings.lease_seconds * 1000))
        self._keep_ms = max(1, int(settings.retention * 1100))  # a tenth more: see conclude.lua
        self._blob_ms = 2 * self._keep_ms + 7 * 24 * 3600 * 1000
        self._kept: dict[tuple[str, str], float] = {}  # when a server was seen to have a blob
        link.on_new_epoch(self._kept.clear)

    def _key(self, kind: str, name: str) -> str:
        return f"{self._settings.prefix}:{kind}:{name}"

    def _entry_of(self, run_id: str, meta: Sequence[Reply]) -> RunEntry:
        """Read what is stored of a run: see `META`; the last two are not there of every run."""
        session_id, created, status, seq, updated, server, lost = meta
        return RunEntry(
            run_id,
            session_id.decode(),
            float(created),
            status.decode(),
            int(seq),
            float(updated or created),  # a run of an earlier version does not say
            self._has_moved(server) or lost is not None,
        )

    def _has_moved(self, server: Reply) -> bool:
        """Say whether a run was last driven on another server than this one."""
        return server is not None and server.decode() != self._link.server.run_id

    async def _absent(self, run_id: str) -> RequestError:
        """Say what became of a run that is not there. Raises `StoreError`."""
        epoch = epoch_of(run_id)
        if epoch and epoch != await self._link.refresh_epoch():
            return RunLost("the store of this run was emptied; start it again")
        return RunNotFound()


def expired() -> RunLost:
    """Say of a run that it was here, and was not kept for ever."""
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
