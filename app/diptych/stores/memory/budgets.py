"""The ledger of one process: budgets that runs share, in memory. It ends with the process."""

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
    """Fulfils `ports.budgets.Ledger`; no method waits for anything."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._accounts: OrderedDict[str, AccountState] = OrderedDict()  # the last used at the end
        self._kept_until: dict[str, float] = {}
        self._settled: OrderedDict[str, float] = OrderedDict()  # entries, until when
        self._ended: OrderedDict[tuple[str, str], float] = OrderedDict()  # runs, of accounts

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
        """Return an account, new if it has expired; those used longest ago are forgotten."""
        state = self._accounts.pop(account.key, None)
        if state is None or self._kept_until[account.key] < now:
            state = AccountState()
        self._accounts[account.key] = state
        self._kept_until[account.key] = now + account.seconds
        while len(self._accounts) > MOST_ACCOUNTS:
            oldest, _ = self._accounts.popitem(last=False)
            del self._kept_until[oldest]
        return state
