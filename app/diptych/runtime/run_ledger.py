"""The ledger as one run uses it: its accounts today, and what they are told of it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from diptych.errors import StoreError
from diptych.loop.budget import Budget, Prices
from diptych.loop.codec import Record
from diptych.loop.events import Failed
from diptych.loop.messages import NO_USE, Used
from diptych.loop.spending import all_reserved, used_up
from diptych.net.backoff import Backoff
from diptych.ports import Clock, Notice
from diptych.ports.budgets import AHEAD_SECONDS, Account, Reserved
from diptych.runtime.agent_ledger import (
    AWAY_SECONDS,
    SECONDS_OF_A_DAY,
    AgentLedger,
    day_key,
)
from diptych.runtime.approval_records import waited_seconds
from diptych.runtime.budget_notices import budget_warning
from diptych.runtime.recorded_use import RecordedUse, is_reply, with_times_asked
from diptych.runtime.run_meter import BudgetRefused

_LENT_PARTS = 4  # of what is left: one is for a delegation, where the run has no such limit itself
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
        self.replies_before = self.replies() if self.is_taken_over else 0
        """The replies that a former owner has put on record."""

    def executed_ms(self) -> int:
        """Say for how long the run has executed here; to wait for an approval is not that."""
        now = self.now()
        waited = waited_seconds(self.log.records, now) - self._waited
        return max(0, round((now - self._began - waited) * 1000))

    def replies(self) -> int:
        """Count the replies on record."""
        return sum(map(is_reply, self.log.records))

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
        self.known: Sequence[Used] = ()
        """What is used of the accounts of today, as far as this run has heard."""
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
            self.known = self._agent_ledger.known_sums(accounts)
        return self._accounts

    def have_left(self, many: Used) -> bool:
        """Whether more tokens and money than these are left, as far as this run has heard.

        What others use and reserve now is not known here; of a session's account nothing is, before
        the first request of a run.
        """
        for account, used in zip(self._accounts, self.known, strict=True):
            ends = account.budget.ends
            if used.tokens + many.tokens >= ends[0] or used.cost + many.cost >= ends[1]:
                return False
        return True

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

    async def try_reserve(
        self, accounts: Sequence[Account], far: Sequence[Account], entry: str, amount: Used
    ) -> Reserved | None:
        """Reserve of `accounts` for many calls, if something is left of them with the limits `far`.

        Gives None while the ledger is away. Where nobody knows whether it has reserved, that is
        given back in the background.
        """
        agent_ledger = self._agent_ledger
        try:
            found = await agent_ledger.store.reserve(far, entry, amount, AHEAD_SECONDS)
        except StoreError:
            agent_ledger.settle_in_background(accounts, entry, self.run_id, NO_USE)
            return None
        except asyncio.CancelledError:
            agent_ledger.settle_in_background(accounts, entry, self.run_id, NO_USE)
            raise
        self.update_known(accounts, found.used)
        return found

    async def part(self, accounts: Sequence[Account], share: Budget) -> Budget:
        """Give what a delegation may have of what nobody uses or has reserved.

        Never nothing: to ask for that would be no question. Raises `StoreError`.
        """
        sums, given = await self._agent_ledger.store.claimed(accounts), share
        own = dict(share.limits)
        for account, claimed in zip(accounts, sums, strict=True):
            left = replace(account.budget.left(claimed), wall_clock=None)
            whole: dict[str, Any] = {name: limit for name, limit in left.limits if name in own}
            part = replace(left.share(_LENT_PARTS), **whole)
            given = given.tightened(part.above_zero())
        return given

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
            self.update_known(accounts, sums)
            self.update_day_and_warn(accounts, sums)

    async def settle_time(self) -> None:
        """Count the time that the run has executed, and that was not counted yet."""
        if self._is_timed:
            await self.settle_use(self.today(), next(self._agent_ledger.new_entries), NO_USE)

    def update_known(self, accounts: Sequence[Account], sums: Sequence[Used]) -> None:
        """Take over what is used of today's accounts."""
        if accounts is self._accounts and sums:
            self.known = sums

    def update_day_and_warn(self, accounts: Sequence[Account], sums: Sequence[Used]) -> None:
        """Take over what is used of the day, and tell who watches when it is 80 % of a limit."""
        for account, used in zip(accounts, sums, strict=False):
            if account.scope == "perDay":
                self._agent_ledger.update_day(account, used)
            if account.budget.is_warned(used) and not self.has_ended:
                for name in self._agent_ledger.take_warnings(account, used):
                    notice = budget_warning(name, used, account.budget, account.scope)
                    self._counted.log.notify(notice)

    def unrecorded(self, replied: int) -> int:
        """Say how many of the replies that came here are on no record."""
        return max(0, replied - self._counted.replies() + self._counted.replies_before)

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

    async def leave(self, accounts: Sequence[Account], entry: str, unrecorded: Used) -> None:
        """Count the record, and then settle what is on none: till then that is reserved."""
        try:
            with suppress(StoreError):  # the next owner does it
                await self.count_record()
        finally:
            await self.settle_use(accounts, entry, unrecorded, is_recorded=False)

    async def end_run(
        self, entry: str, used: Used, accounts: Sequence[Account] | None = None
    ) -> None:
        """Settle the last that the run has used of `accounts`; it has ended. Raises `StoreError`.

        Where nothing is to be settled, these are all that it ever shared.
        """
        accounts = accounts or [*self.today(), *self.earlier]
        sums = await self._agent_ledger.store.end_run(accounts, entry, self.run_id, used)
        self._agent_ledger.stop_renewing(entry)
        self.update_day_and_warn(accounts, sums)

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
