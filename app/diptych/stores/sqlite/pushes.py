"""The push notifications that callers want, in SQLite."""

from collections.abc import Sequence
from sqlite3 import Connection

from diptych.ports.entries import Push
from diptych.stores.sqlite.database import step
from diptych.stores.sqlite.event_log import SqliteEventLog, rows_of

_COLUMNS = "SELECT runs.id, pushes.id, config, pushes.seq FROM pushes JOIN runs ON number = run"
_OF_RUN = "WHERE id = ? AND run = (SELECT number FROM runs WHERE id = ?)"


class SqlitePushes(SqliteEventLog):
    """Fulfils `ports.Pushes`."""

    @step
    def put_push(self, db: Connection, push: Push, seconds: float | None) -> None:
        [number] = self._run(db, push.run_id, "number")
        row = (number, push.config_id, push.config, push.seq, self._due(seconds))
        db.execute("INSERT OR REPLACE INTO pushes VALUES (?, ?, ?, ?, ?)", row)

    @step
    def pushes(self, db: Connection, run_id: str) -> Sequence[Push]:
        rows = rows_of(db, f"{_COLUMNS} WHERE runs.id = ? ORDER BY pushes.id", run_id)
        return [Push(*row) for row in rows]

    @step
    def delete_push(self, db: Connection, run_id: str, config_id: str) -> None:
        db.execute(f"DELETE FROM pushes {_OF_RUN}", (config_id, run_id))  # noqa: S608 - a constant

    @step
    def take_due_pushes(self, db: Connection, seconds: float) -> Sequence[Push]:
        now = self._now()
        found = [Push(*row) for row in rows_of(db, f"{_COLUMNS} WHERE pushes.due <= ?", now)]
        db.execute("UPDATE pushes SET due = ? WHERE due <= ?", (now + seconds, now))
        return found

    @step
    def advance_push(self, db: Connection, push: Push, seconds: float | None) -> bytes | None:
        rows = rows_of(
            db,
            f"UPDATE pushes SET seq = ?, due = ? {_OF_RUN} RETURNING config",  # noqa: S608 - a constant
            push.seq,
            self._due(seconds),
            push.config_id,
            push.run_id,
        )
        return rows[0][0] if rows else None

    def _due(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._now() + seconds
