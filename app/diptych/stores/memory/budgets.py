"""The ledger of one process: budgets that runs share, in memory.

It ends with the process, and so does what was counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from diptych.core.budget import Budget, Limit
from diptych.core.messages import NO_USE, Used
from diptych.ports.budgets import RESERVED_SECONDS, Account, Reserved

_KEPT_ACCOUNTS, _MOST_ACCOUNTS = 10_000, 11_000
_SETTLED = 120.0  # seconds for which it is known that an entry was settled
_ENDED = 600.0  # seconds for which it is known that all of a run was counted


@dataclass(slots=True)
class _Row:
    """One account: what is `used`, what entries have `reserved` until when, what runs settled."""

    used: Used = NO_USE
    reserved: dict[str, tuple[float, Used]] = field(default_factory=dict)
    runs: dict[str, Used] = field(default_factory=dict)
    last_use: float = 0.0

    def claimed_beside(self, entry: str) -> Used:
        """Return what is used, or reserved by others than an entry."""
        others = (amount for name, (_, amount) in self.reserved.items() if name != entry)
        return sum(others, self.used)


class MemoryLedger:
    """Fulfils `ports.budgets.Ledger`; no method waits for anything."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._accounts: dict[str, _Row] = {}
        self._settled: OrderedDict[str, float] = OrderedDict()  # entries, until when
        self._ended: OrderedDict[tuple[str, str], float] = OrderedDict()  # runs, of accounts

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        rows = self._rows(accounts)
        if not self._has(rows, entry) and (why := _refusal(accounts, rows, entry, amount)):
            return why
        self._reserve(rows, entry, amount)
        return Reserved("ok", [row.used for row in rows])

    async def reserve_share(
        self, accounts: Sequence[Account], entry: str, wanted: Budget, parts: int
    ) -> Reserved:
        rows = self._rows(accounts)
        if rows and all(entry in row.reserved for row in rows):
            amount = rows[0].reserved[entry][1]
        else:
            asked = _share(accounts, [NO_USE] * len(rows), wanted, 1)
            if why := _refusal(accounts, rows, entry, asked):
                return why
            claimed = [row.claimed_beside(entry) for row in rows]
            amount = _share(accounts, claimed, wanted, parts)
        self._reserve(rows, entry, amount)
        return Reserved("ok", [row.used for row in rows], amount=amount)

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        rows = self._rows(accounts)
        if not self._has(rows, entry) and (why := _refusal(accounts, rows, entry, used)):
            return why
        return Reserved("ok", await self.settle(accounts, entry, run_id, used))

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        until = self._now() + RESERVED_SECONDS
        for row in self._rows(accounts):
            for entry in row.reserved.keys() & set(entries):
                row.reserved[entry] = until, row.reserved[entry][1]

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        rows = self._rows(accounts)
        is_first = entry not in self._settled
        if is_first:
            self._settled[entry] = self._now() + _SETTLED
        for account, row in zip(accounts, rows, strict=True):
            row.reserved.pop(entry, None)
            if is_first:
                row.used += used
                if run_id and (account.key, run_id) not in self._ended:
                    row.runs[run_id] = row.runs.get(run_id, NO_USE) + used
        return [row.used for row in rows]

    async def count_record(self, account: Account, run_id: str, recorded: Used) -> None:
        (row,) = self._rows([account])
        if (account.key, run_id) not in self._ended:
            settled = row.runs.get(run_id, NO_USE)
            missing = Used._make(map(max, recorded - settled, NO_USE))
            row.used += missing
            row.runs[run_id] = settled + missing

    async def end_run(self, accounts: Sequence[Account], run_id: str) -> None:
        for account, row in zip(accounts, self._rows(accounts), strict=True):
            row.runs.pop(run_id, None)
            self._ended.pop((account.key, run_id), None)
            self._ended[account.key, run_id] = self._now() + _ENDED

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        return [row.used for row in self._rows(accounts)]

    def _has(self, rows: Sequence[_Row], entry: str) -> bool:
        """Whether an entry is settled, or has reserved of all accounts."""
        return entry in self._settled or all(entry in row.reserved for row in rows)

    def _reserve(self, rows: Sequence[_Row], entry: str, amount: Used) -> None:
        if entry not in self._settled:
            for row in rows:
                row.reserved[entry] = self._now() + RESERVED_SECONDS, amount

    def _rows(self, accounts: Sequence[Account]) -> Sequence[_Row]:
        """Return accounts without what has expired."""
        now, rows = self._now(), []
        for known in (self._settled, self._ended):
            while known and next(iter(known.values())) < now:
                known.popitem(last=False)
        for account in accounts:
            row = self._accounts.get(account.key)
            if row is None or row.last_use + account.seconds < now:
                row = self._open(account.key)
            for entry in [name for name, (until, _) in row.reserved.items() if until < now]:
                del row.reserved[entry]
            row.last_use = now
            rows.append(row)
        return rows

    def _open(self, key: str) -> _Row:
        """Begin an account anew; of too many, those used longest ago are forgotten."""
        accounts = self._accounts
        row = accounts[key] = _Row()
        if len(accounts) > _MOST_ACCOUNTS:
            by_use = sorted(accounts, key=lambda key: accounts[key].last_use, reverse=True)
            for oldest in by_use[_KEPT_ACCOUNTS:]:
                del accounts[oldest]
            accounts[key] = row
        return row


def _refusal(
    accounts: Sequence[Account], rows: Sequence[_Row], entry: str, wanted: Used
) -> Reserved | None:
    """Say why an amount cannot be had beside what others have, None if it can."""
    busy = _first_gone(accounts, [row.claimed_beside(entry) for row in rows], wanted)
    if busy is None:
        return None
    used = [row.used for row in rows]
    gone = _first_gone(accounts, used, wanted)
    return Reserved("gone", used, *gone) if gone else Reserved("busy", used, *busy)


def _first_gone(
    accounts: Sequence[Account], taken: Sequence[Used], wanted: Used
) -> tuple[int, Limit] | None:
    """Find the first limit of which nothing is left, if the amount has something of it."""
    for index, account in enumerate(accounts):
        for name, limit in account.budget.limits:
            is_gone = getattr(taken[index], name) >= limit
            if is_gone and (name == "wall_clock" or getattr(wanted, name) > 0):
                return index, name
    return None


def _share(accounts: Sequence[Account], taken: Sequence[Used], wanted: Budget, parts: int) -> Used:
    """Return what is wanted as far as it is left; of what is not limited, one of the parts."""
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
