"""The ledger of one process: budgets that runs share, in memory.

It ends with the process, and so does what was counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from diptych.loop.budget import Limit
from diptych.loop.messages import NO_USE, Used
from diptych.ports.budgets import RESERVED_SECONDS, Account, Reserved

_MAX_ACCOUNTS = 10_000
_SETTLED = 60.0  # seconds for which it is known that an entry was settled
_FORGOTTEN = 600.0  # seconds for which it is known that all of a run was counted


@dataclass(slots=True)
class _Account:
    """What is known of one account; most have one run, and are idle from its end on."""

    used: Used = NO_USE
    reserved: dict[str, tuple[float, Used]] = field(default_factory=dict)
    runs: dict[str, Used] = field(default_factory=dict)
    last_use: float = 0.0

    def claimed(self) -> Used:
        """What is used, or reserved."""
        claimed = self.used
        for _, amount in self.reserved.values():
            claimed += amount
        return claimed


class MemoryLedger:
    """Fulfils `ports.budgets.Ledger`; no method waits for anything."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._settled: OrderedDict[str, float] = OrderedDict()  # entries, until when
        self._forgotten: OrderedDict[tuple[str, str], float] = OrderedDict()  # runs of accounts

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        return self._reserve(accounts, entry, amount, is_lent=False)

    async def lend(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        return self._reserve(accounts, entry, amount, is_lent=True)

    def _reserve(
        self, accounts: Sequence[Account], entry: str, amount: Used, *, is_lent: bool
    ) -> Reserved:
        now = self._now()
        rows = [self._account(each, now) for each in accounts]
        used = [row.used for row in rows]
        reserved = [row.reserved for row in rows if row.reserved]
        if len(reserved) == len(rows) and all(entry in held for held in reserved):
            for entries in reserved:
                entries[entry] = (now + RESERVED_SECONDS, entries[entry][1])
            return Reserved("ok", used, lent=reserved[0][entry][1] if reserved else amount)
        if gone := _first_without(accounts, used, amount):
            return Reserved("gone", used, *gone)
        if reserved:
            claimed = [row.claimed() for row in rows]
            if busy := _first_without(accounts, claimed, amount):
                return Reserved("busy", used, *busy)
        if is_lent:
            amount = _within(accounts, [row.claimed() for row in rows], amount)
        reservation = (now + RESERVED_SECONDS, amount)
        for row in rows:
            row.reserved[entry] = reservation
        return Reserved("ok", used, lent=amount)

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        now = self._now()
        for row in [self._account(each, now) for each in accounts]:
            for entry in entries:
                if entry in row.reserved:
                    row.reserved[entry] = (now + RESERVED_SECONDS, row.reserved[entry][1])

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        now = self._now()
        rows = [self._row(each, now) for each in accounts]
        is_first = self._note_settled(entry, now)
        for row in rows:
            row.reserved.pop(entry, None)
            if is_first:
                row.used += used
                row.runs[run_id] = row.runs[run_id] + used if run_id in row.runs else used
        return [row.used for row in rows]

    async def adopt(self, account: Account, run_id: str, recorded: Used) -> None:
        now = self._now()
        row = self._account(account, now)
        if self._forgotten.get((account.key, run_id), now - 1) >= now:
            return
        known = row.runs.get(run_id, NO_USE)
        missing = _beyond(recorded, known)
        row.used += missing
        row.runs[run_id] = known + missing

    async def forget(self, accounts: Sequence[Account], run_id: str) -> None:
        now, forgotten = self._now(), self._forgotten
        while forgotten and next(iter(forgotten.values())) < now:
            forgotten.popitem(last=False)
        for account in accounts:
            if row := self._accounts.get(account.key):
                row.runs.pop(run_id, None)
                forgotten.setdefault((account.key, run_id), now + _FORGOTTEN)

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        now = self._now()
        return [self._account(each, now).used for each in accounts]

    def _note_settled(self, entry: str, now: float) -> bool:
        """Note that an entry is settled; False if it was before."""
        settled = self._settled
        while settled and next(iter(settled.values())) < now:
            settled.popitem(last=False)
        is_first = entry not in settled
        if is_first:
            settled[entry] = now + _SETTLED
        return is_first

    def _account(self, account: Account, now: float) -> _Account:
        """Give an account without reservations that nobody holds any more."""
        row = self._row(account, now)
        if row.reserved and any(until < now for until, _ in row.reserved.values()):
            row.reserved = {name: held for name, held in row.reserved.items() if held[0] >= now}
        return row

    def _row(self, account: Account, now: float) -> _Account:
        """Give an account, with all its reservations."""
        row = self._accounts.get(account.key)
        if row is None or row.last_use + account.seconds < now:
            row = self._accounts[account.key] = _Account()
        row.last_use = now
        self._accounts.move_to_end(account.key)
        while len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return row


def _beyond(one: Used, other: Used) -> Used:
    """Give what one has more of than another."""
    return Used._make(map(max, one - other, NO_USE))


def _within(accounts: Sequence[Account], taken: Sequence[Used], wanted: Used) -> Used:
    """Give as much of an amount as is left of each limit."""
    for account, used in zip(accounts, taken, strict=True):
        for name, limit in account.budget.limits:
            if (left := limit - getattr(used, name)) < getattr(wanted, name):
                wanted = wanted._replace(**{name: left}) if getattr(wanted, name) > 0 else wanted
    return wanted


def _first_without(
    accounts: Sequence[Account], taken: Sequence[Used], wanted: Used
) -> tuple[int, Limit] | None:
    """Find the first limit of which nothing is left, if the amount has something of it."""
    for index, account in enumerate(accounts):
        used = taken[index]
        for name, limit in account.budget.limits:
            is_gone = getattr(used, name) >= limit
            if is_gone and (name == "wall_clock" or getattr(wanted, name) > 0):
                return index, name
    return None
