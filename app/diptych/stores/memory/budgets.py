"""The ledger in memory: budgets shared by runs of this process."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar

from diptych.ports.budgets import Account
from diptych.stores.ledger import (
    ENDED_SECONDS,
    SETTLED_SECONDS,
    AccountState,
    Page,
    RuledLedger,
)

MOST_ACCOUNTS = 10_000
T = TypeVar("T")


class MemoryLedger(RuledLedger):
    """Implements `ports.budgets.Ledger`; no method blocks."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._accounts: OrderedDict[str, AccountState] = OrderedDict()  # in order of last use
        self._kept_until: dict[str, float] = {}
        self._settled: OrderedDict[str, float] = OrderedDict()  # expiry by entry
        self._ended: OrderedDict[tuple[str, str], float] = OrderedDict()  # by account and run

    async def _apply(
        self,
        accounts: Sequence[Account],
        change: Callable[[Page], T],
        entry: str = "",
        run_id: str = "",
    ) -> T:
        now = self._now()
        for known in (self._settled, self._ended):
            while known and next(iter(known.values())) < now:
                known.popitem(last=False)
        states = [self._state(account, now) for account in accounts]
        ended = [(account.key, run_id) in self._ended for account in accounts]
        page = Page(accounts, states, now, entry in self._settled, ended)
        result = change(page)
        if page.settles and not page.is_settled:
            self._settled[entry] = now + SETTLED_SECONDS
        for account in accounts if page.ends else ():
            self._ended[account.key, run_id] = now + ENDED_SECONDS
            self._ended.move_to_end((account.key, run_id))
        return result

    def _state(self, account: Account, now: float) -> AccountState:
        """Return an account, a new one if it has expired; evict the least recently used ones."""
        state = self._accounts.pop(account.key, None)
        if state is None or self._kept_until[account.key] < now:
            state = AccountState()
        self._accounts[account.key] = state
        self._kept_until[account.key] = now + account.seconds
        while len(self._accounts) > MOST_ACCOUNTS:
            oldest, _ = self._accounts.popitem(last=False)
            del self._kept_until[oldest]
        return state
