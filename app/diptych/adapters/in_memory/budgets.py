"""The ledger of one process: budgets that runs share, in memory.

It ends with the process, and so does what was counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import add, ge
from time import monotonic

from diptych.loop.budget import Limit
from diptych.loop.messages import NO_USE, Used
from diptych.ports.budgets import RESERVED_SECONDS, Account, Reserved

_KEPT_ACCOUNTS, _MOST_ACCOUNTS = 10_000, 11_000
_SETTLED = 60.0  # seconds for which it is known that an entry was settled
_ENDED = 600.0  # seconds for which it is known that all of a run was counted
_new = tuple.__new__


@dataclass(slots=True)
class _Account:
    """What is known of one account; most have one run, and are idle from its end on.

    `held` is all that is `reserved`. What each run has used is kept as it was settled: only `adopt`
    adds it up. Before `due` no reservation ends.
    """

    used: Used = NO_USE
    held: Used = NO_USE
    reserved: dict[str, tuple[float, Used]] = field(default_factory=dict)
    runs: dict[str, list[Used]] = field(default_factory=dict)
    last_use: float = 0.0
    due: float = inf

    def claimed(self) -> Used:
        """What is used, or reserved."""
        return self.used + self.held

    def free(self, now: float) -> None:
        """Drop reservations that nobody holds any more."""
        self.reserved = {name: held for name, held in self.reserved.items() if held[0] >= now}
        self.due = min((until for until, _ in self.reserved.values()), default=inf)
        self.held = sum((amount for _, amount in self.reserved.values()), NO_USE)

    def let_go(self, entry: str) -> None:
        """End a reservation, if there is one."""
        if held := self.reserved.pop(entry, None):
            self.held = self.held - held[1] if self.reserved else NO_USE


class MemoryLedger:
    """Fulfils `ports.budgets.Ledger`; no method waits for anything.

    `reserve` and `settle` run for each request to a model: as a rule they are one loop over the
    accounts, with sums (`_new`) that call no function of Python.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._accounts: dict[str, _Account] = {}
        self._settled: dict[str, float] = {}  # entries, until when; some for longer
        self._settled_due = inf
        self._ended: OrderedDict[tuple[str, str], float] = OrderedDict()  # runs, of accounts

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        now = self._now()
        rows = self._rows(accounts, now)
        if _is_free(accounts, rows, entry):
            return _hold(rows, entry, amount, now)
        return self._reserve(accounts, entry, amount, is_lent=False)

    async def lend(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        now = self._now()
        rows = self._rows(accounts, now)
        if _is_free(accounts, rows, entry, amount):
            return _hold(rows, entry, amount, now)
        return self._reserve(accounts, entry, amount, is_lent=True)

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        now = self._now()
        rows = self._rows(accounts, now)
        is_settled = self._settled.get(entry, now - 1) >= now
        is_sure = is_settled or _is_free(accounts, rows, entry)
        if not is_sure and (refused := _refused(accounts, rows, used)):
            return refused
        return Reserved("ok", self._settle(rows, entry, run_id, used, now))

    def _reserve(
        self, accounts: Sequence[Account], entry: str, amount: Used, *, is_lent: bool
    ) -> Reserved:
        now = self._now()
        rows = self._rows(accounts, now)
        if held := _held(rows, entry):
            amount = held
        elif refused := _refused(accounts, rows, amount):
            return refused
        elif is_lent:
            amount = _within(accounts, [row.claimed() for row in rows], amount)
        for row in rows:
            row.let_go(entry)
        return _hold(rows, entry, amount, now)

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        now = self._now()
        for row in self._rows(accounts, now):
            for entry in entries:
                if entry in row.reserved:
                    row.reserved[entry] = (now + RESERVED_SECONDS, row.reserved[entry][1])

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        now = self._now()
        return self._settle(self._rows(accounts, now), entry, run_id, used, now)

    def _settle(
        self, rows: Sequence[_Account], entry: str, run_id: str, used: Used, now: float
    ) -> Sequence[Used]:
        is_first, sums = self._note_settled(entry, now), []
        for row in rows:
            if entry in row.reserved:
                row.let_go(entry)
            if is_first:
                row.used = _new(Used, map(add, row.used, used))
                row.runs.setdefault(run_id, []).append(used)
            sums.append(row.used)
        return sums

    def _note_settled(self, entry: str, now: float) -> bool:
        """Note that an entry is settled; gives whether it was not."""
        settled = self._settled
        if self._settled_due < now:
            self._settled = settled = {e: until for e, until in settled.items() if until >= now}
            self._settled_due = inf
        if entry in settled:
            return False
        settled[entry] = until = now + _SETTLED
        self._settled_due = min(self._settled_due, until)
        return True

    async def adopt(self, account: Account, run_id: str, recorded: Used) -> None:
        now = self._now()
        (row,) = self._rows([account], now)
        if self._ended.get((account.key, run_id), now - 1) >= now:
            return
        parts = row.runs.setdefault(run_id, [])
        missing = _beyond(recorded, sum(parts, NO_USE))
        row.used += missing
        parts.append(missing)

    async def end_run(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        now, ended, sums = self._now(), self._ended, []
        while ended and next(iter(ended.values())) < now:
            ended.popitem(last=False)
        is_first = self._note_settled(entry, now)
        for account, row in zip(accounts, self._rows(accounts, now), strict=True):
            if entry in row.reserved:
                row.let_go(entry)
            if (key := (account.key, run_id)) not in ended:
                ended[key] = now + _ENDED
                if is_first:
                    row.used = _new(Used, map(add, row.used, used))
            row.runs.pop(run_id, None)
            sums.append(row.used)
        return sums

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        return [row.used for row in self._rows(accounts, self._now())]

    def _rows(self, accounts: Sequence[Account], now: float) -> Sequence[_Account]:
        """Give accounts without reservations that nobody holds any more."""
        rows = []
        for account in accounts:
            row = self._accounts.get(account.key)
            if row is None or row.last_use + account.seconds < now:
                row = self._open(account.key)
            elif row.due < now:
                row.free(now)
            row.last_use = now
            rows.append(row)
        return rows

    def _open(self, key: str) -> _Account:
        """Begin an account anew; of too many, those are forgotten that were used longest ago."""
        accounts = self._accounts
        row = accounts[key] = _Account()
        if len(accounts) > _MOST_ACCOUNTS:
            by_use = sorted(accounts, key=lambda key: accounts[key].last_use, reverse=True)
            for oldest in by_use[_KEPT_ACCOUNTS:]:
                del accounts[oldest]
            accounts[key] = row
        return row


def _is_free(
    accounts: Sequence[Account], rows: Sequence[_Account], entry: str, amount: Used = NO_USE
) -> bool:
    """Whether more than an amount is left of each limit, for an entry that holds nothing."""
    for account, row in zip(accounts, rows, strict=True):
        if entry in row.reserved:
            return False
        wanted = map(add, row.used, amount)
        if row.reserved:
            wanted = map(add, wanted, row.held)
        if True in map(ge, wanted, account.budget.ends):
            return False
    return True


def _hold(rows: Sequence[_Account], entry: str, amount: Used, now: float) -> Reserved:
    """Reserve an amount under an entry that holds nothing."""
    until, used = now + RESERVED_SECONDS, []
    held = (until, amount)
    for row in rows:
        row.held = _new(Used, map(add, row.held, amount)) if row.reserved else amount
        row.reserved[entry] = held
        row.due = min(row.due, until)
        used.append(row.used)
    return Reserved("ok", used, lent=amount)


def _held(rows: Sequence[_Account], entry: str) -> Used | None:
    """Give what an entry holds of accounts, None unless it does so of each."""
    for row in rows:
        if entry not in row.reserved:
            return None
    return rows[0].reserved[entry][1] if rows else None


def _refused(
    accounts: Sequence[Account], rows: Sequence[_Account], wanted: Used
) -> Reserved | None:
    """Say why an amount cannot be had, None if it can."""
    busy = _first_without(accounts, [row.claimed() for row in rows], wanted)
    if busy is None:
        return None
    used = [row.used for row in rows]
    gone = _first_without(accounts, used, wanted)
    return Reserved("gone", used, *gone) if gone else Reserved("busy", used, *busy)


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
        if account.budget.is_left(used):  # as a rule; to look at each limit takes longer
            continue
        for name, limit in account.budget.limits:
            is_gone = getattr(used, name) >= limit
            if is_gone and (name == "wall_clock" or getattr(wanted, name) > 0):
                return index, name
    return None
