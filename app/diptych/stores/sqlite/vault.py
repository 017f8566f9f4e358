"""Secrets in the SQLite file; the caller has encrypted them."""

from collections.abc import Callable
from sqlite3 import Connection

from diptych.stores.sqlite.database import Database, step
from diptych.stores.sqlite.event_log import rows_of


class SqliteVault:
    """Fulfils `ports.stores.Vault`."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now

    @step
    def get(self, db: Connection, key: str) -> bytes | None:
        return self._value(db, key)

    @step
    def put(self, db: Connection, key: str, value: bytes, seconds: float) -> None:
        now = self._now()
        db.execute("DELETE FROM vault WHERE until <= ?", (now,))
        db.execute("INSERT OR REPLACE INTO vault VALUES (?, ?, ?)", (key, now + seconds, value))

    @step
    def take(self, db: Connection, key: str) -> bytes | None:
        value = self._value(db, key)
        db.execute("DELETE FROM vault WHERE key = ?", (key,))
        return value

    def _value(self, db: Connection, key: str) -> bytes | None:
        query = "SELECT value FROM vault WHERE key = ? AND until > ?"
        rows = rows_of(db, query, key, self._now())
        return bytes(rows[0][0]) if rows else None
