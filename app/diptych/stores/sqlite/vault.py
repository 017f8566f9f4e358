"""Secrets in the SQLite file; the caller has encrypted them."""

from collections.abc import Callable
from sqlite3 import Connection

from diptych.stores.sqlite.database import Database
from diptych.stores.sqlite.event_log import rows_of


class SqliteVault:
    """Fulfils `ports.stores.Vault`."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now

    async def get(self, key: str) -> bytes | None:
        return await self._database.run(_get, key, self._now())

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        await self._database.run(_put, key, value, self._now(), seconds)

    async def take(self, key: str) -> bytes | None:
        return await self._database.run(_take, key, self._now())


def _get(db: Connection, key: str, now: float) -> bytes | None:
    rows = rows_of(db, "SELECT value FROM vault WHERE key = ? AND until > ?", key, now)
    return bytes(rows[0][0]) if rows else None


def _put(db: Connection, key: str, value: bytes, now: float, seconds: float) -> None:
    db.execute("DELETE FROM vault WHERE until <= ?", (now,))
    db.execute("INSERT OR REPLACE INTO vault VALUES (?, ?, ?)", (key, now + seconds, value))


def _take(db: Connection, key: str, now: float) -> bytes | None:
    value = _get(db, key, now)
    db.execute("DELETE FROM vault WHERE key = ?", (key,))
    return value
