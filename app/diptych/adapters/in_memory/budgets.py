"""The ledger of one process: budgets that runs share, in memory.

It ends with the process, and so does what was counted.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf
from operator import add
from time import monotonic

from diptych.adapters.in_memory.accounts import (
    Row,
    beyond,
    is_free,
    refusal,
    reserve,
    reserved_by,
    within,
)
from diptych.loop.messages import NO_USE, Used
from diptych.ports.budgets import AHEAD_SECONDS, RESERVED_SECONDS, Account, Reserved

_KEPT_ACCOUNTS, _MOST_ACCOUNTS = 10_000, 11_000
_SETTLED = 60.0  # seconds for which it is known that an entry was settled
_ENDED = 600.0  # seconds for which it is known that all of a run was counted
_new = tuple.__new__


class MemoryLedger:
    """Fulfils `ports.budgets.Ledger`; no method waits for anything.

    `reserve` and `settle` run for each request to a model: as a rule they are one loop over the
    accounts, with sums (`_new`) that call no function of Python.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._accounts: dict[str, Row] = {}
        self._settled: dict[str, float] = {}  # entries, until when; some for longer
        self._settled_due = inf
        self._ended: OrderedDict[tuple[str, str], float] = OrderedDict()  # runs, of accounts

    async def reserve(
        self,
        accounts: Sequence[Account],
        entry: str,
        amount: Used,
        seconds: float = RESERVED_SECONDS,
    ) -> Reserved:
        now = self._now()
        rows = self._rows(accounts, now)
        if self._is_settled(entry, now):
            return Reserved("ok", [row.used for row in rows], amount=amount)
        if not is_free(accounts, rows, entry):
            if (found := reserved_by(entry, rows)) is not None:
                amount = found
            elif why := refusal(accounts, rows, entry, amount):
                return why
        return Reserved("ok", reserve(rows, entry, amount, now + seconds), amount=amount)

    async def reserve_up_to(
        self, accounts: Sequence[Account], entry: str, amount: Used
    ) -> Reserved:
        now = self._now()
        rows = self._rows(accounts, now)
        if self._is_settled(entry, now):
            return Reserved("ok", [row.used for row in rows], amount=amount)
        if not is_free(accounts, rows, entry, amount):
            if (found := reserved_by(entry, rows)) is not None:
                amount = found
            elif why := refusal(accounts, rows, entry, amount):
                return why
            else:
                others = [row.claimed_beside(entry) for row in rows]
                amount = within(accounts, others, amount)
        return Reserved("ok", reserve(rows, entry, amount, now + AHEAD_SECONDS), amount=amount)

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        now = self._now()
        rows = self._rows(accounts, now)
        is_sure = self._is_settled(entry, now) or is_free(accounts, rows, entry)
        if not is_sure and (why := refusal(accounts, rows, entry, used)):
            return why
        return Reserved("ok", self._settle(accounts, entry, run_id, used))

    async def renew(
        self, accounts: Sequence[Account], entries: Sequence[str], seconds: float
    ) -> None:
        now = self._now()
        for row in self._rows(accounts, now):
            for entry in entries:
                row.renew(entry, now + seconds)

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        return self._settle(accounts, entry, run_id, used)

    def _settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        now = self._now()
        is_first, sums = self._mark_settled(entry, now), []
        for account, row in zip(accounts, self._rows(accounts, now), strict=True):
            if entry in row.reserved:
                row.release(entry)
            if is_first:
                row.used = _new(Used, map(add, row.used, used))
                if run_id and not self._has_ended(account, run_id, now):
                    row.runs.setdefault(run_id, []).append(used)
            sums.append(row.used)
        return sums

    def _has_ended(self, account: Account, run_id: str, now: float) -> bool:
        """Whether it is known that all of a run was counted; then nobody counts its record."""
        return self._ended.get((account.key, run_id), now - 1) >= now

    def _is_settled(self, entry: str, now: float) -> bool:
        """Whether it is known that an entry was settled; then no step of it counts any more."""
        until = self._settled.get(entry)
        return until is not None and until >= now

    def _mark_settled(self, entry: str, now: float) -> bool:
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

    async def count_record(self, account: Account, run_id: str, recorded: Used) -> None:
        now = self._now()
        (row,) = self._rows([account], now)
        if self._has_ended(account, run_id, now):
            return
        parts = row.runs.setdefault(run_id, [])
        missing = beyond(recorded, sum(parts, NO_USE))
        row.used += missing
        parts.append(missing)

    async def end_run(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        now, ended, sums = self._now(), self._ended, []
        while ended and next(iter(ended.values())) < now:
            ended.popitem(last=False)
        is_first = self._mark_settled(entry, now)
        for account, row in zip(accounts, self._rows(accounts, now), strict=True):
            if entry in row.reserved:
                row.release(entry)
            key = account.key, run_id
            if ended.pop(key, None) is None and is_first:
                row.used = _new(Used, map(add, row.used, used))
            ended[key] = now + _ENDED
            row.runs.pop(run_id, None)
            sums.append(row.used)
        return sums

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        return [row.used for row in self._rows(accounts, self._now())]

    async def claimed(self, accounts: Sequence[Account]) -> Sequence[Used]:
        return [row.used + row.total for row in self._rows(accounts, self._now())]

    def _rows(self, accounts: Sequence[Account], now: float) -> Sequence[Row]:
        """Give accounts without reservations that nobody has renewed."""
        rows = []
        for account in accounts:
            row = self._accounts.get(account.key)
            if row is None or row.last_use + account.seconds < now:
                row = self._open(account.key)
            elif row.due < now:
                row.drop_expired(now)
            row.last_use = now
            rows.append(row)
        return rows

    def _open(self, key: str) -> Row:
        """Begin an account anew; of too many, those are forgotten that were used longest ago."""
        accounts = self._accounts
        row = accounts[key] = Row()
        if len(accounts) > _MOST_ACCOUNTS:
            by_use = sorted(accounts, key=lambda key: accounts[key].last_use, reverse=True)
            for oldest in by_use[_KEPT_ACCOUNTS:]:
                del accounts[oldest]
            accounts[key] = row
        return row
