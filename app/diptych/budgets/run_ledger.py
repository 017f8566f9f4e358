"""The ledger as one run uses it: its accounts today, and what they are told of it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Protocol

from diptych.budgets.agent_ledger import (
    AWAY_SECONDS,
    SECONDS_OF_A_DAY,
    AgentLedger,
    day_key,
)
from diptych.budgets.budget_notices import budget_warning
from diptych.budgets.recorded_use import RecordedUse, with_times_asked
from diptych.budgets.run_meter import BudgetRefused
from diptych.core.approval_records import waited_seconds
from diptych.core.budget import Prices
from diptych.core.codec import Record
from diptych.core.errors import StoreError
from diptych.core.events import Failed
from diptych.core.messages import NO_USE, Used
from diptych.core.spending import all_reserved, used_up
from diptych.net.backoff import Backoff
from diptych.ports import Clock, Notice
from diptych.ports.budgets import Account, Reserved

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5  # seconds, for what others have reserved


class CountedLog(Protocol):
    """The log of a run, as what counts it knows it."""

    run_id: str
    session_id: str

    @property
    def records(self) -> Sequence[Record]:
        """All that is on record, as it grows."""
        ...

    def notify(self, notice: Notice) -> None:
        """Tell who watches the run."""
        ...


class CountedRun:
    """The run that is metered, as its executor knows it.

    `is_taken_over` says whether more than its request is on record: a former owner has run it.
    """

    def __init__(self, clock: Clock, log: CountedLog, prices: Prices | None) -> None:
        self.now = clock.now
        self.log = log
        self._prices = prices
        self._began = clock.now()
        self.is_taken_over = len(log.records) > 1
        self._waited = waited_seconds(log.records, self._began) if self.is_taken_over else 0.0

    def executed_ms(self) -> int:
        """Say for how long the run has executed here; to wait for an approval is not that."""
        now = self.now()
        waited = waited_seconds(self.log.records, now) - self._waited
        return max(0, round((now - self._began - waited) * 1000))

    def recorded(self) -> list[tuple[str, Used]]:
        """Say what is on record, by the accounts of the days on which it was asked for."""
        use, before, found = RecordedUse(self._prices), NO_USE, dict[float, Used]()
        timed = with_times_asked(self.log.records)
        for day, of_day in groupby(timed, key=lambda pair: pair[1] // SECONDS_OF_A_DAY):
            for record, _ in of_day:
                use.add(record)
            used = use.used
            found[day] = found.get(day, NO_USE) + used - before
            before = used
        days = found.items()
        return [(day_key(day * SECONDS_OF_A_DAY), used) for day, used in days if used != NO_USE]


class RunLedger:
    """Asks the ledger for one run, and tells it what the run has used."""

    def __init__(self, agent_ledger: AgentLedger, counted: CountedRun) -> None:
        self.run_id = counted.log.run_id
        self._session_id = counted.log.session_id
        self._agent_ledger = agent_ledger
        self._counted = counted
        self.must_count_record = counted.is_taken_over
        """Whether the record may have what a former owner has not settled."""
        self._is_timed = agent_ledger.is_timed
        self._midnight = -math.inf  # the end of the day of these:
        self._accounts: Sequence[Account] = ()
        self._settled_ms = 0
        self.earlier: list[Account] = []
        """The accounts of the days before, if midnight came while it ran."""
        self.has_ended = False
        """Whether nobody is told anything of the run any more."""

    def today(self) -> Sequence[Account]:
        """Give the accounts that the run shares now."""
        now = self._counted.now()
        if now >= self._midnight:
            self._midnight = (now // SECONDS_OF_A_DAY + 1) * SECONDS_OF_A_DAY
            accounts = self._agent_ledger.accounts(self._session_id, now)
            if self._accounts:  # of the day before
                self.earlier.extend(each for each in self._accounts if each not in accounts)
            self._accounts = accounts
        return self._accounts

    async def ask(
        self,
        accounts: Sequence[Account],
        reserve: Callable[[], Awaitable[Reserved]],
        *,
        waits: bool = True,
    ) -> Reserved:
        """Reserve or spend; `waits` for what others have reserved. Raises `BudgetRefused`."""
        loop = asyncio.get_running_loop()
        backoff, away_until = None, loop.time() + AWAY_SECONDS
        while True:
            try:
                if self.must_count_record:
                    await self.count_record()
                found = await reserve()
            except StoreError as error:
                if loop.time() >= away_until:
                    raise BudgetRefused(_unavailable()) from error
            else:
                if found.outcome == "ok":
                    return found
                if found.outcome == "gone" or not waits:
                    raise BudgetRefused(_refusal(accounts, found))
                away_until = loop.time() + AWAY_SECONDS
            backoff = backoff or Backoff(_FIRST_WAIT, _LONGEST_WAIT)
            await asyncio.sleep(_FIRST_WAIT / 2 + backoff.next_delay())

    async def settle_use(
        self, accounts: Sequence[Account], entry: str, used: Used, *, is_recorded: bool = True
    ) -> None:
        """Replace a reservation, if there is one, by what was used, and the time since the last.

        Where the store is away, or the run is cancelled meanwhile, that is done in the background.
        What is on no record is settled as of no run: all that is settled of a run is taken for a
        part of its record (`count_record`).
        """
        agent_ledger, run_id = self._agent_ledger, self.run_id if is_recorded else ""
        if self._is_timed:
            used += self._elapsed()
        try:
            sums = await agent_ledger.store.settle(accounts, entry, run_id, used)
        except StoreError:
            agent_ledger.settle_in_background(accounts, entry, run_id, used)
        except asyncio.CancelledError:
            agent_ledger.settle_in_background(accounts, entry, run_id, used)
            raise
        else:
            agent_ledger.stop_renewing(entry)
            self.update_day_and_warn(accounts, sums)

    async def settle_time(self) -> None:
        """Count the time that the run has executed, and that was not counted yet."""
        if self._is_timed:
            await self.settle_use(self.today(), next(self._agent_ledger.new_entries), NO_USE)

    def update_day_and_warn(self, accounts: Sequence[Account], sums: Sequence[Used]) -> None:
        """Take over what is used of the day, and tell who watches when it is 80 % of a limit."""
        for account, used in zip(accounts, sums, strict=False):
            if account.scope == "perDay":
                self._agent_ledger.update_day(account, used)
            if account.budget.is_warned(used) and not self.has_ended:
                for name in self._agent_ledger.take_warnings(account, used):
                    notice = budget_warning(name, used, account.budget, account.scope)
                    self._counted.log.notify(notice)

    async def count_record(self) -> None:
        """Count what the record has beyond what was settled; see `Ledger.count_record`."""
        ledger, recorded = self._agent_ledger.store, self._counted.recorded()
        for account in self.today():
            if account.scope == "perDay":
                for day, used in recorded:
                    await ledger.count_record(account._replace(key=day), self.run_id, used)
            else:
                whole = sum((used for _, used in recorded), NO_USE)
                await ledger.count_record(account, self.run_id, whole)
        self.must_count_record = False

    async def end_run(self) -> None:
        """Have the ledger forget how much of the sums is this run's. Raises `StoreError`."""
        accounts = [*self.today(), *self.earlier]
        await self._agent_ledger.store.end_run(accounts, self.run_id)

    def _elapsed(self) -> Used:
        """Give the time that was not settled yet."""
        executed = self._counted.executed_ms()
        due, self._settled_ms = executed - self._settled_ms, executed
        return Used(wall_clock=max(0, due))


def _refusal(accounts: Sequence[Account], found: Reserved) -> Failed:
    account = accounts[found.place]
    if found.outcome == "busy":
        return all_reserved(found.limit, account.scope)
    return used_up(found.limit, found.used[found.place], account.budget, account.scope)


def _unavailable() -> Failed:
    return Failed(
        "budget_unavailable",
        "the store that counts the budgets of this agent cannot be reached, so no call is made",
    )
