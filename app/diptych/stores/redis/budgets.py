"""The ledger in Redis: budgets shared by the runs of all replicas.

An operation reads its accounts, changes them here, and writes them back if they are unchanged in
the store; otherwise it starts over (optimistic locking).
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from diptych.ports.budgets import Account
from diptych.stores.encoding import decode_account, encode_account
from diptych.stores.ledger import (
    ENDED_SECONDS,
    SETTLED_SECONDS,
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
                states = [decode_account(each) for each in stored]
                page = Page(accounts, states, ms / 1000, bool(is_settled), list(map(bool, ended)))
                result = change(page)
                encoded = [encode_account(state) for state in states]
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
