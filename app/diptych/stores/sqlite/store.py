"""The store in an SQLite file: all ports of it as one object."""

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from diptych.stores.sqlite.budgets import SqliteLedger
from diptych.stores.sqlite.database import Database
from diptych.stores.sqlite.event_log import KEPT_SECONDS
from diptych.stores.sqlite.leases import SqliteLeases, begin, end
from diptych.stores.sqlite.vault import SqliteVault


class SqliteStore(SqliteLeases):
    """Fulfils `EventLog`, `Sessions`, `SessionLeases`, `Pushes` and `Feed` of `ports.stores`.

    `ledger` fulfils `ports.budgets.Ledger`, `vault` a `Vault`. The file is open, and its lock
    held, from here to `aclose`. Raises as `Database` does; `executor` is for tests.
    """

    name = "sqlite"
    retention = KEPT_SECONDS

    def __init__(
        self, path: Path, now: Callable[[], float] = time.time, executor: Executor | None = None
    ) -> None:
        super().__init__(Database(path, secrets.token_hex(4), executor), now)
        self.ledger = SqliteLedger(self._database, now)
        self.vault = SqliteVault(self._database, now)

    async def start(self) -> None:
        """Release what a dead process has left; others can then take it over."""
        await self._database.run(begin)

    async def aclose(self) -> None:
        """Release all sessions, and close the file."""
        await self._database.aclose(end)

    def unavailable_reason(self) -> str:
        """Return why the store cannot be used now, and what to do; empty if it can."""
        return self._database.unavailable_reason()

    def full_reason(self) -> str:
        """Return since when the disk is full; empty while it has room for new runs."""
        return self._database.full_reason()

    def notes(self) -> Sequence[str]:
        """Say where runs are kept."""
        return [f"runs are kept in {self._database.path}, and outlive the process"]
