"""The ledger in Redis: budgets shared by the runs of all replicas.

An operation reads its accounts, changes them here, and writes them back if they are unchanged in
the store; otherwise it starts over (optimistic locking).
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from diptych.core.budget import from_integers, to_integers
from diptych.ports.budgets import Account
from diptych.stores.ledger import (
    ENDED_SECONDS,
    SETTLED_SECONDS,
    AccountState,
    Page,
    RuledLedger,
)
from diptych.stores.redis.connection import RedisConnection
from diptych.stores.redis.scripts import BUDGETS

T = TypeVar("T")


class RedisLedger(RuledLedger):
    """Implements `ports.budgets.Ledger`."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()  # avoids conflicts between operations of this process

    async def _apply(
        self,
        accounts: Sequence[Account],
        change: Callable[[Page], T],
        entry: str = "",
        run_id: str = "",
    ) -> T:
        keys = [account.key for account in accounts]
        async with self._lock:
            while True:
                ms, is_settled, ended, versions, stored = await self._connection.run(
                    BUDGETS, "read", entry, run_id, *keys
                )
                states = [_decoded(each) for each in stored]
                page = Page(accounts, states, ms / 1000, bool(is_settled), list(map(bool, ended)))
                result = change(page)
                encoded = [_encoded(state) for state in states]
                if not (page.settles or page.ends or encoded != stored):
                    return result
                rows = zip(accounts, versions, encoded, strict=True)
                is_written = await self._connection.run(
                    BUDGETS,
                    "write",
                    secrets.token_hex(8),
                    "" if is_settled or not page.settles else entry,
                    round(SETTLED_SECONDS * 1000),
                    run_id if page.ends else "",
                    round(ENDED_SECONDS * 1000),
                    *(
                        argument
                        for account, version, text in rows
                        for argument in (account.key, round(account.seconds * 1000), version, text)
                    ),
                )
                if is_written:
                    return result


def _encoded(state: AccountState) -> bytes:
    """Encode an account, with money as integers, which may exceed 64 bits."""
    row: dict[str, Any] = {
        "used": to_integers(state.used),
        "reserved": {
            entry: [until, *to_integers(amount)]
            for entry, (until, amount) in state.reserved.items()
        },
        "runs": {run_id: to_integers(used) for run_id, used in state.runs.items()},
    }
    return json.dumps(row).encode()


def _decoded(text: bytes) -> AccountState:
    if not text:
        return AccountState()
    row = json.loads(text)
    return AccountState(
        from_integers(row["used"]),
        {entry: (each[0], from_integers(each[1:])) for entry, each in row["reserved"].items()},
        {run_id: from_integers(used) for run_id, used in row["runs"].items()},
    )
