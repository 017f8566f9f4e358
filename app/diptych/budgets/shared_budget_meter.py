"""Charges runs to the budgets that they share: their session's, and the day's (decision 145).

Before a call, an upper estimate of its use is reserved in the ledger; afterwards, the real use is
settled in its place. If nothing is left, or the ledger is unreachable, the call is not made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol

from diptych.budgets.agent_budgets import SECONDS_OF_A_DAY, AgentBudgets, day_key, until_done
from diptych.budgets.recorded_use import RecordedUse, with_times_asked
from diptych.budgets.run_meter import BudgetRefused, ModelCall, RunMeter, budget_warning
from diptych.core.budget import LIMITS, UNLIMITED, Budget
from diptych.core.call_graph import failure
from diptych.core.codec import Record
from diptych.core.commands import AskModel, MakeCall
from diptych.core.errors import StoreError
from diptych.core.events import Failed, Returned
from diptych.core.messages import NO_USE, Delegation, Result, Usage, Used
from diptych.core.spending import all_reserved, gets_share, is_counted, shares, used_up
from diptych.core.state import Run
from diptych.core.waits import waited_seconds
from diptych.net.backoff import Backoff
from diptych.ports import Notice
from diptych.ports.budgets import Account, Reserved

AWAY_SECONDS = 10.0  # to wait for an unreachable ledger before refusing a call
_SETTLE_SECONDS = 0.2  # to wait for a settlement before the run continues
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5  # seconds between retries while others hold reservations
_ONE_CALL = Used(tool_calls=1)
_UNAVAILABLE = Failed(
    "budget_unavailable",
    "the store with this agent's budgets cannot be reached, so the call was not made",
)


class CountedLog(Protocol):
    """A run's log, as the meter needs it."""

    run_id: str
    session_id: str

    @property
    def records(self) -> Sequence[Record]: ...

    def notify(self, notice: Notice) -> None: ...


class SharedBudgetMeter(RunMeter):
    """Charges one run's usage to its session's and the day's budget."""

    def __init__(self, budgets: AgentBudgets, log: CountedLog) -> None:
        super().__init__()
        self._budgets = budgets
        self._ledger = budgets.ledger
        self._now = budgets.clock.now
        self._log = log
        self._must_charge_log = len(log.records) > 1  # a former owner may have died unsettled
        self._began = self._now()
        self._waited = waited_seconds(log.records, self._began)
        self._settled_ms = 0
        self._touched: dict[str, Account] = {}  # accounts that this run may have used, by key
        self._reserved: dict[str, tuple[Sequence[Account], str]] = {}  # for delegations, by call id
        self._settling: set[asyncio.Task[None]] = set()
        self._has_ended = False

    async def begin(self, command: AskModel) -> ModelCall:
        accounts, budgets = self._accounts(), self._budgets
        call = ModelCall(command, None, accounts, next(budgets.new_entries))
        expected = budgets.estimate.of_request(call)
        reserve = partial(self._ledger.reserve, accounts, call.entry, expected)
        try:
            await self._reserve(accounts, reserve)
        except (asyncio.CancelledError, BudgetRefused):  # the reservation may exist
            self._settle(accounts, call.entry, NO_USE)
            raise
        budgets.keep_renewing(accounts, call.entry)
        return call

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        is_cut_off = isinstance(error, asyncio.CancelledError)
        if is_cut_off:  # the endpoint may have read and charged it
            call.usage = Usage(call.request_tokens)
        used, estimate = call.usage, self._budgets.estimate
        amount = estimate.amount(used, steps=int(call.is_step)) if used else NO_USE
        settled = self._settle(call.accounts, call.entry, amount, is_recorded=not is_cut_off)
        if used is not None and error is None:
            estimate.learn(call.request_tokens, used)
        await asyncio.wait([settled], timeout=_SETTLE_SECONDS)

    async def charge_calls(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        self.shares = shares(run, commands)
        allowed: list[MakeCall] = []
        accounts = self._accounts()
        parts = len(self.shares) + 1  # leave one for others
        for command in commands:
            call = command.call
            try:
                if gets_share(call, run):
                    if command.is_retry:  # a former owner may have reserved its share
                        wanted = run.shares.get(call.id) or UNLIMITED
                        await self._reserve_share(accounts, call, wanted, 1, waits=False)
                    else:
                        wanted = self.shares.get(call.id, UNLIMITED)
                        waits = not self._reserved
                        await self._reserve_share(accounts, call, wanted, parts, waits=waits)
                        parts -= 1
                elif is_counted(call) and not command.is_retry:
                    await self._spend(accounts, _ONE_CALL)
            except BudgetRefused as refused:
                if not command.is_retry:
                    refuse(failure(call, "denied", f"denied: {refused.end.message}"))
                    continue
            allowed.append(command)
        return allowed

    def take_up(self, call: Delegation) -> None:
        self._reserved[call.id] = self._accounts(), self._entry_of(call.id)

    def end_child(self, result: Result, used: Used) -> None:
        reserved = self._reserved.pop(result.call_id, None)
        if reserved or used != NO_USE:
            accounts, entry = reserved or (self._accounts(), self._entry_of(result.call_id))
            self._settle(accounts, entry, used)

    async def close(self, *, has_ended: bool) -> None:
        self._has_ended = has_ended
        try:
            if self._budgets.is_timed:
                self._settle(self._accounts(), next(self._budgets.new_entries), NO_USE)
            if has_ended:  # last chance to charge it
                charging = self._budgets.spawn(until_done(self._charge_all))
                await asyncio.wait([charging], timeout=AWAY_SECONDS)
            elif self._settling:
                await asyncio.wait(tuple(self._settling), timeout=_SETTLE_SECONDS)
        finally:  # the next owner renews them, or they expire
            for _, entry in self._reserved.values():
                self._budgets.stop_renewing(entry)

    def _accounts(self) -> Sequence[Account]:
        """Return the accounts for this run today."""
        accounts = self._budgets.accounts(self._log.session_id, self._now())
        self._touched.update({account.key: account for account in accounts})
        return accounts

    async def _reserve(
        self,
        accounts: Sequence[Account],
        attempt: Callable[[], Awaitable[Reserved]],
        *,
        waits: bool = True,
    ) -> Reserved:
        """Reserve, retrying while others hold the rest if `waits`. Raises `BudgetRefused`."""
        loop = asyncio.get_running_loop()
        backoff, away_until = Backoff(_FIRST_WAIT, _LONGEST_WAIT), loop.time() + AWAY_SECONDS
        while True:
            try:
                if self._must_charge_log:
                    await self._charge_log()
                found = await attempt()
            except StoreError as error:
                if loop.time() >= away_until:
                    raise BudgetRefused(_UNAVAILABLE) from error
            else:
                if found.outcome == "ok":
                    return found
                if found.outcome == "gone" or not waits:
                    raise BudgetRefused(_refusal(accounts, found))
                away_until = loop.time() + AWAY_SECONDS
            await asyncio.sleep(_FIRST_WAIT / 2 + backoff.next_delay())

    def _settle(
        self, accounts: Sequence[Account], entry: str, used: Used, *, is_recorded: bool = True
    ) -> asyncio.Task[None]:
        """Replace a reservation, if any, by real usage plus the elapsed time.

        Retries until the store accepts it, even if the run is cancelled. Usage that is not in the
        log is settled without a run id, because what a run has settled counts as part of its log.
        """
        run_id = self._log.run_id if is_recorded else ""
        if self._budgets.is_timed:
            used += self._elapsed()

        async def settle() -> None:
            sums = await self._ledger.settle(accounts, entry, run_id, used)
            self._budgets.stop_renewing(entry)
            self._note_use(accounts, sums)

        task = self._budgets.spawn(until_done(settle))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _spend(self, accounts: Sequence[Account], used: Used) -> None:
        """Reserve and settle in one step. Raises `BudgetRefused`."""
        entry = next(self._budgets.new_entries)
        spend = partial(self._ledger.spend, accounts, entry, self._log.run_id, used)
        found = await self._reserve(accounts, spend, waits=not self._reserved)
        self._note_use(accounts, found.used)

    async def _reserve_share(
        self,
        accounts: Sequence[Account],
        call: Delegation,
        wanted: Budget,
        parts: int,
        *,
        waits: bool,
    ) -> None:
        """Reserve a delegation's share, or renew a former owner's reservation.

        For limits that the run itself does not have, the share is one of `parts` of the remainder.
        Raises `BudgetRefused`.
        """
        entry = self._entry_of(call.id)
        self._reserved[call.id] = accounts, entry
        reserve = partial(self._ledger.reserve_share, accounts, entry, wanted, parts)
        try:
            found = await self._reserve(accounts, reserve, waits=waits)
        except BudgetRefused:  # the reservation may exist all the same
            self.end_child(Result(call.id, ""), NO_USE)
            raise
        self._budgets.keep_renewing(accounts, entry)
        budgets = (wanted, *(account.budget for account in accounts))
        limited = {name for budget in budgets for name, _ in budget.limits} - {"wall_clock"}
        self.shares[call.id] = Budget(
            **{name: getattr(found.amount, name) for name in LIMITS if name in limited}
        )

    def _entry_of(self, call_id: str) -> str:
        """Name a delegation's reservation, identically for every owner of the run."""
        return f"{self._log.run_id}/share/{call_id}"

    def _note_use(self, accounts: Sequence[Account], sums: Sequence[Used]) -> None:
        for account, used in zip(accounts, sums, strict=False):
            for name in self._budgets.note_use(account, used):
                if not self._has_ended:
                    notice = budget_warning(name, used, account.budget, account.scope)
                    self._log.notify(notice)

    def _elapsed(self) -> Used:
        """Return the execution time that is not settled yet."""
        now = self._now()
        waited = waited_seconds(self._log.records, now) - self._waited
        executed = max(0, round((now - self._began - waited) * 1000))
        due, self._settled_ms = executed - self._settled_ms, executed
        return Used(wall_clock=max(0, due))

    async def _charge_all(self) -> None:
        """Charge everything logged for a run that has ended, and release its reservations.

        Waits for open settlements first: their usage is in the log and would be charged twice.
        """
        while self._settling:
            await asyncio.wait(tuple(self._settling))
        await self._charge_log()
        for accounts, entry in self._reserved.values():
            await self._ledger.settle(accounts, entry, self._log.run_id, NO_USE)
            self._budgets.stop_renewing(entry)
        await self._ledger.end_run(tuple(self._touched.values()), self._log.run_id)

    async def _charge_log(self) -> None:
        """Charge usage that is in the log but not settled: a dead owner's, and children's."""
        recorded = self._recorded()
        for account in self._accounts():
            if account.scope == "perDay":
                for day, used in recorded:
                    of_day = self._touched[day] = account._replace(key=day)
                    await self._ledger.count_record(of_day, self._log.run_id, used)
            else:
                whole = sum((used for _, used in recorded), NO_USE)
                await self._ledger.count_record(account, self._log.run_id, whole)
        self._must_charge_log = False

    def _recorded(self) -> list[tuple[str, Used]]:
        """Return the logged usage by the day of its request."""
        use, before, found = (
            RecordedUse(prices=self._budgets.settings.prices),
            NO_USE,
            dict[str, Used](),
        )
        timed = with_times_asked(self._log.records)
        for day, of_day in groupby(timed, key=lambda pair: pair[1] // SECONDS_OF_A_DAY):
            for record, _ in of_day:
                use.add(record)
            key = day_key(day * SECONDS_OF_A_DAY)
            found[key] = found.get(key, NO_USE) + use.used - before
            before = use.used
        return [(key, used) for key, used in found.items() if used != NO_USE]


def meter_of(budgets: AgentBudgets | None, log: CountedLog) -> RunMeter:
    """Return a run's meter; beyond the first record, `log` has the work of a former owner."""
    return SharedBudgetMeter(budgets, log) if budgets and budgets.shared else RunMeter()


def _refusal(accounts: Sequence[Account], found: Reserved) -> Failed:
    account = accounts[found.place]
    if found.outcome == "busy":
        return all_reserved(found.limit, account.scope)
    return used_up(found.limit, found.used[found.place], account.budget, account.scope)
