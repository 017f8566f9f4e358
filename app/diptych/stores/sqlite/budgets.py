"""The ledger in SQLite: budgets that the runs of an agent share, over restarts."""

from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import TypeVar

from diptych.ports.budgets import Account
from diptych.stores.encoding import decode_account, encode_account
from diptych.stores.ledger import (
    ENDED_SECONDS,
    SETTLED_SECONDS,
    Page,
    RuledLedger,
)
from diptych.stores.sqlite.database import Database, step
from diptych.stores.sqlite.event_log import rows_of

T = TypeVar("T")


class SqliteLedger(RuledLedger):
    """Fulfils `ports.budgets.Ledger`."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now

    @step
    def _apply(
        self,
        db: Connection,
        accounts: Sequence[Account],
        change: Callable[[Page], T],
        entry: str = "",
        run_id: str = "",
    ) -> T:
        now = self._now()

        def is_counted(key: str) -> bool:
            return bool(rows_of(db, "SELECT 1 FROM counted WHERE key = ? AND until >= ?", key, now))

        def count(key: str, seconds: float) -> None:
            db.execute("INSERT OR REPLACE INTO counted VALUES (?, ?)", (key, now + seconds))

        settled, ended = f"entry:{entry}", [f"run:{account.key}:{run_id}" for account in accounts]
        before = [_stored(db, account, now) for account in accounts]
        states = list(map(decode_account, before))
        page = Page(accounts, states, now, is_counted(settled), [is_counted(key) for key in ended])
        result = change(page)
        for account, was, state in zip(accounts, before, states, strict=True):
            if (encoded := encode_account(state)) != was:
                row = (account.key, now + account.seconds, encoded)
                db.execute("INSERT OR REPLACE INTO accounts VALUES (?, ?, ?)", row)
        if page.settles and not page.is_settled:
            count(settled, SETTLED_SECONDS)
        for key in ended if page.ends else ():
            count(key, ENDED_SECONDS)
        return result


def _stored(db: Connection, account: Account, now: float) -> bytes:
    """Return an account as it is stored; empty if it is not, or has expired."""
    rows = rows_of(db, "SELECT state FROM accounts WHERE key = ? AND until >= ?", account.key, now)
    return bytes(rows[0][0]) if rows else b""
