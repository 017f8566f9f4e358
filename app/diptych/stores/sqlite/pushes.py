"""The push notifications that callers want, in SQLite."""

from collections.abc import Sequence
from sqlite3 import Connection

from diptych.ports.entries import Push
from diptych.stores.sqlite.event_log import SqliteEventLog, rows_of

_COLUMNS = "SELECT runs.id, pushes.id, config, pushes.seq FROM pushes JOIN runs ON number = run"


class SqlitePushes(SqliteEventLog):
    """Fulfils `ports.Pushes`."""

    async def put_push(self, push: Push, seconds: float | None) -> None:
        await self._database.run(self._put_push, push, self._due(seconds))

    def _put_push(self, db: Connection, push: Push, due: float | None) -> None:
        [number] = self._run(db, push.run_id, "number")
        row = (number, push.config_id, push.config, push.seq, due)
        db.execute("INSERT OR REPLACE INTO pushes VALUES (?, ?, ?, ?, ?)", row)

    async def pushes(self, run_id: str) -> Sequence[Push]:
        query = f"{_COLUMNS} WHERE runs.id = ? ORDER BY pushes.id"
        return [Push(*row) for row in await self._database.run(rows_of, query, run_id)]

    async def delete_push(self, run_id: str, config_id: str) -> None:
        await self._database.run(_delete, run_id, config_id)

    async def take_due_pushes(self, seconds: float) -> Sequence[Push]:
        return await self._database.run(_take_due, self._now(), seconds)

    async def advance_push(self, push: Push, seconds: float | None) -> bytes | None:
        return await self._database.run(_advance, push, self._due(seconds))

    def _due(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._now() + seconds


def _delete(db: Connection, run_id: str, config_id: str) -> None:
    db.execute(
        "DELETE FROM pushes WHERE id = ? AND run = (SELECT number FROM runs WHERE id = ?)",
        (config_id, run_id),
    )


def _take_due(db: Connection, now: float, seconds: float) -> list[Push]:
    found = [Push(*row) for row in rows_of(db, f"{_COLUMNS} WHERE pushes.due <= ?", now)]
    db.execute("UPDATE pushes SET due = ? WHERE due <= ?", (now + seconds, now))
    return found


def _advance(db: Connection, push: Push, due: float | None) -> bytes | None:
    rows = rows_of(
        db,
        "UPDATE pushes SET seq = ?, due = ? WHERE id = ? "
        "AND run = (SELECT number FROM runs WHERE id = ?) RETURNING config",
        push.seq,
        due,
        push.config_id,
        push.run_id,
    )
    return rows[0][0] if rows else None
