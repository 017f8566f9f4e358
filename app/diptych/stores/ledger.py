"""The rules of the ledger, shared by all stores.

A store only loads the accounts of an operation, and atomically writes them back.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from diptych.core.budget import Budget, Limit
from diptych.core.messages import NO_USE, Used
from diptych.ports.budgets import RESERVED_SECONDS, Account, Reserved

SETTLED_SECONDS = 120.0  # how long to remember that an entry was settled
ENDED_SECONDS = 600.0  # how long to remember that all use of a run was counted
T = TypeVar("T")


@dataclass(slots=True)
class AccountState:
    """An account: its use, each entry's reservation with its expiry, the settled use of runs."""

    used: Used = NO_USE
    reserved: dict[str, tuple[float, Used]] = field(default_factory=dict)
    runs: dict[str, Used] = field(default_factory=dict)

    def claimed_by_others(self, entry: str) -> Used:
        """Return the use plus the reservations of all other entries."""
        others = (amount for name, (_, amount) in self.reserved.items() if name != entry)
        return sum(others, self.used)


@dataclass(slots=True)
class Page:
    """The accounts of one operation at the time `now` (seconds).

    `is_settled`: its entry was settled already. `is_ended`: for each account, whether its run has
    ended. An operation changes the states, and sets `settles` or `ends` to remember the same for
    its own entry or run.
    """

    accounts: Sequence[Account]
    states: Sequence[AccountState]
    now: float
    is_settled: bool
    is_ended: Sequence[bool]
    settles: bool = False
    ends: bool = False

    def __post_init__(self) -> None:
        for state in self.states:
            for entry in [name for name, (until, _) in state.reserved.items() if until < self.now]:
                del state.reserved[entry]

    @property
    def used(self) -> list[Used]:
        return [state.used for state in self.states]

    def has(self, entry: str) -> bool:
        """Whether an entry is settled, or has a reservation in every account."""
        return self.is_settled or all(entry in state.reserved for state in self.states)

    def reserve(self, entry: str, amount: Used) -> None:
        for state in () if self.is_settled else self.states:
            state.reserved[entry] = self.now + RESERVED_SECONDS, amount

    def settle(self, entry: str, run_id: str, used: Used) -> None:
        for state, is_ended in zip(self.states, self.is_ended, strict=True):
            state.reserved.pop(entry, None)
            if not self.is_settled:
                state.used += used
                if run_id and not is_ended:
                    state.runs[run_id] = state.runs.get(run_id, NO_USE) + used
        self.settles = True


class RuledLedger(ABC):
    """Implements `ports.budgets.Ledger` for a store that can apply a change to accounts."""

    @abstractmethod
    async def _apply(
        self,
        accounts: Sequence[Account],
        change: Callable[[Page], T],
        entry: str = "",
        run_id: str = "",
    ) -> T:
        """Call `change` with the accounts, and store its changes, atomically.

        It may be called several times, each time with the current accounts.
        """

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        def change(page: Page) -> Reserved:
            if not page.has(entry) and (why := _refusal(page, entry, amount)):
                return why
            page.reserve(entry, amount)
            return Reserved("ok", page.used)

        return await self._apply(accounts, change, entry)

    async def reserve_share(
        self, accounts: Sequence[Account], entry: str, wanted: Budget, parts: int
    ) -> Reserved:
        def change(page: Page) -> Reserved:
            if page.states and all(entry in state.reserved for state in page.states):
                amount = page.states[0].reserved[entry][1]
            else:
                asked = _share(accounts, [NO_USE] * len(accounts), wanted, 1)
                if why := _refusal(page, entry, asked):
                    return why
                claimed = [state.claimed_by_others(entry) for state in page.states]
                amount = _share(accounts, claimed, wanted, parts)
            page.reserve(entry, amount)
            return Reserved("ok", page.used, amount=amount)

        return await self._apply(accounts, change, entry)

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        def change(page: Page) -> Reserved:
            if not page.has(entry) and (why := _refusal(page, entry, used)):
                return why
            page.settle(entry, run_id, used)
            return Reserved("ok", page.used)

        return await self._apply(accounts, change, entry, run_id)

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        def change(page: Page) -> None:
            for state in page.states:
                for entry in state.reserved.keys() & set(entries):
                    state.reserved[entry] = page.now + RESERVED_SECONDS, state.reserved[entry][1]

        await self._apply(accounts, change)

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        def change(page: Page) -> Sequence[Used]:
            page.settle(entry, run_id, used)
            return page.used

        return await self._apply(accounts, change, entry, run_id)

    async def count_record(self, account: Account, run_id: str, recorded: Used) -> None:
        def change(page: Page) -> None:
            if not page.is_ended[0]:
                state = page.states[0]
                settled = state.runs.get(run_id, NO_USE)
                missing = Used._make(map(max, recorded - settled, NO_USE))
                state.used += missing
                state.runs[run_id] = settled + missing

        await self._apply([account], change, run_id=run_id)

    async def end_run(self, accounts: Sequence[Account], run_id: str) -> None:
        def change(page: Page) -> None:
            for state in page.states:
                state.runs.pop(run_id, None)
            page.ends = True

        await self._apply(accounts, change, run_id=run_id)

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        return await self._apply(accounts, lambda page: page.used)


def _refusal(page: Page, entry: str, wanted: Used) -> Reserved | None:
    """Return the refusal if an account has nothing left for the amount, else None."""
    claimed = [state.claimed_by_others(entry) for state in page.states]
    busy = _first_gone(page.accounts, claimed, wanted)
    if busy is None:
        return None
    gone = _first_gone(page.accounts, page.used, wanted)
    return Reserved("gone", page.used, *gone) if gone else Reserved("busy", page.used, *busy)


def _first_gone(
    accounts: Sequence[Account], taken: Sequence[Used], wanted: Used
) -> tuple[int, Limit] | None:
    """Find the first exhausted limit that applies to the amount: account index, and name."""
    for index, account in enumerate(accounts):
        for name, limit in account.budget.limits:
            is_gone = getattr(taken[index], name) >= limit
            if is_gone and (name == "wall_clock" or getattr(wanted, name) > 0):
                return index, name
    return None


def _share(accounts: Sequence[Account], taken: Sequence[Used], wanted: Budget, parts: int) -> Used:
    """Return the wanted amounts as far as available, and 1/`parts` of every other limit."""
    amounts: dict[str, Any] = dict(wanted.limits)
    own = set(amounts)
    for account, used in zip(accounts, taken, strict=True):
        left = account.budget.left(used)
        part = dict(left.share(parts).above_zero().limits)
        for name, limit in left.limits:
            if name != "wall_clock":
                most = limit if name in own else part[name]
                amounts[name] = min(amounts.get(name, most), most)
    return Used(**amounts)
