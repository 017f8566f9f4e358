"""The ledger of one process: budgets that runs share, in memory.

It ends with the process, and so does what was counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from diptych.loop.budget import LIMITS, Limit, from_integers, to_integers
from diptych.loop.messages import Used
from diptych.ports.budgets import RESERVED_SECONDS, Account, Reserved

_MAX_ACCOUNTS = 10_000
_SETTLED = 60.0  # seconds for which it is known that an entry was settled
_Vector = list[int]


@dataclass
class _Account:
    used: _Vector = field(default_factory=lambda: [0] * len(LIMITS))
    reserved: dict[str, tuple[float, _Vector]] = field(default_factory=dict)
    settled: OrderedDict[str, float] = field(default_factory=OrderedDict)  # the oldest first
    runs: dict[str, _Vector] = field(default_factory=dict)
    last_use: float = 0.0

    def claimed(self) -> _Vector:
        """What is used, or reserved."""
        claimed = self.used
        for _, amount in self.reserved.values():
            claimed = _sum(claimed, amount)
        return claimed


class MemoryLedger:
    """Fulfils `ports.budgets.Ledger`; no method waits for anything."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        rows, wanted = [self._account(each) for each in accounts], _numbers(amount)
        used = [from_integers(row.used) for row in rows]
        if all(entry in row.reserved for row in rows):
            return Reserved("ok", used)
        if gone := _first_without(accounts, [row.used for row in rows], wanted):
            return Reserved("gone", used, *gone)
        if busy := _first_without(accounts, [row.claimed() for row in rows], wanted):
            return Reserved("busy", used, *busy)
        for row in rows:
            row.reserved[entry] = (self._now() + RESERVED_SECONDS, wanted)
        return Reserved("ok", used)

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        for row in map(self._account, accounts):
            for entry in entries:
                if entry in row.reserved:
                    until = self._now() + RESERVED_SECONDS
                    row.reserved[entry] = (until, row.reserved[entry][1])

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        amount = _numbers(used)
        for row in map(self._account, accounts):
            row.reserved.pop(entry, None)
            if entry not in row.settled:
                row.settled[entry] = self._now() + _SETTLED
                row.used = _sum(row.used, amount)
                row.runs[run_id] = _sum(row.runs.get(run_id, [0] * len(LIMITS)), amount)
        return await self.used(accounts)

    async def adopt(self, account: Account, run_id: str, recorded: Used) -> None:
        row, due = self._account(account), _numbers(recorded)
        known = row.runs.get(run_id, [0] * len(LIMITS))
        missing = [max(0, one - other) for one, other in zip(due, known, strict=True)]
        row.used = _sum(row.used, missing)
        row.runs[run_id] = _sum(known, missing)

    async def forget(self, accounts: Sequence[Account], run_id: str) -> None:
        for row in map(self._account, accounts):
            row.runs.pop(run_id, None)

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        return [from_integers(self._account(each).used) for each in accounts]

    def _account(self, account: Account) -> _Account:
        """Give an account without reservations that nobody holds any more."""
        now, row = self._now(), self._accounts.get(account.key)
        if row is None or row.last_use + account.seconds < now:
            row = self._accounts[account.key] = _Account()
        row.last_use = now
        self._accounts.move_to_end(account.key)
        while len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        if any(until < now for until, _ in row.reserved.values()):
            row.reserved = {name: held for name, held in row.reserved.items() if held[0] >= now}
        while row.settled and next(iter(row.settled.values())) < now:
            row.settled.popitem(last=False)
        return row


def _numbers(used: Used) -> _Vector:
    return [number or 0 for number in to_integers(used)]


def _sum(one: _Vector, other: _Vector) -> _Vector:
    return [a + b for a, b in zip(one, other, strict=True)]


def _first_without(
    accounts: Sequence[Account], taken: Sequence[_Vector], wanted: _Vector
) -> tuple[int, Limit] | None:
    """Find the first limit of which nothing is left, if the amount has something of it."""
    for index, account in enumerate(accounts):
        limits = to_integers(account.budget)
        for n, name in enumerate(LIMITS):
            limit = limits[n]
            is_wanted = wanted[n] > 0 or name == "wall_clock"
            if limit is not None and is_wanted and taken[index][n] >= limit:
                return index, name
    return None
