"""Meters what a run uses of budgets that it shares with others: its session's, and the day's.

Before the model is asked, an estimate of what it will take is reserved in the ledger; its reply
settles that. Where nothing is left, or nobody can say whether anything is, the call is not made.

Not here: the ledger (`ports.budgets`), the run's own budget (`loop.spending`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from diptych.errors import StoreError
from diptych.loop.budget import Budget
from diptych.loop.call_graph import failure
from diptych.loop.commands import AskModel, MakeCall
from diptych.loop.events import Failed, Returned
from diptych.loop.messages import NO_USE, Delegation, Result, Usage, Used
from diptych.loop.run_settings import RunSettings
from diptych.loop.spending import as_used, failed, is_counted, lent_out, shares
from diptych.loop.state import Run
from diptych.net.backoff import Backoff
from diptych.ports import Notice
from diptych.ports.budgets import Account, Reserved
from diptych.runtime.budget_notices import budget_warning
from diptych.runtime.ledger_client import SECONDS_OF_A_DAY, LedgerClient
from diptych.runtime.metered_call import MeteredCall, Reservation
from diptych.runtime.run_meter import BudgetRefused, RunMeter

AWAY_SECONDS = 10.0  # for which a call waits for a ledger that is away; then it is not made
_LENT_PARTS = 4  # of what is left, for one delegation of a run without a limit of its own
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5  # seconds, for what others have reserved
UNAVAILABLE = "budget_unavailable"


@dataclass
class CountedRun:
    """The run that is metered, as its executor knows it.

    `token` is new for each owner of the run. `executed_ms` says for how long the run has executed
    here, `recorded` what its record said it had used when this process took it up, by days.
    """

    token: str
    now: Callable[[], float]
    notify: Callable[[Notice], None]
    observe: Callable[[Account, Used], None]
    executed_ms: Callable[[], int]
    recorded: Callable[[], Sequence[tuple[str, Used]]]


class SharedBudgetMeter(RunMeter):
    """Counts what one run uses of its session's budget, and of the day's."""

    def __init__(
        self,
        run_id: str,
        session_id: str,
        settings: RunSettings,
        client: LedgerClient,
        counted: CountedRun,
    ) -> None:
        super().__init__()
        self._run_id = run_id
        self._session_id = session_id
        self._settings = settings
        self._client = client
        self._counted = counted
        self._owner = counted.token
        self._must_adopt = bool(counted.recorded())
        limits = (client.budgets.per_session.wall_clock, client.budgets.per_day.wall_clock)
        self._is_timed = limits != (None, None)
        self._day = -1
        self._shared: Sequence[Account] = ()  # of that day
        self._entries = 0
        self._settled_ms = 0
        self._used: dict[str, Account] = {}
        self._lent: dict[str, tuple[Sequence[Account], str]] = {}  # to delegations, by their calls
        self._has_delegated = False
        self._settling: set[asyncio.Task[None]] = set()  # what delegations have used

    def model_call(self, command: AskModel) -> MeteredCall:
        return MeteredCall(self, command)

    async def reserve(self, command: AskModel, sent: int) -> Reservation:
        """Reserve what a request of the weight `sent` will use. Raises `BudgetRefused`."""
        is_step = command.purpose in ("actions", "either")
        expected = self._amount(self._client.estimate.reserved(command, sent), is_step=is_step)
        accounts = self._accounts()
        return Reservation(accounts, await self._reserve(accounts, expected), is_step)

    async def settle(self, reserved: Reservation, used: Usage | None) -> None:
        """Settle what a request has used; None if nothing, as it failed."""
        amount = self._amount(used, is_step=reserved.is_step) if used is not None else NO_USE
        await self._settle(reserved.accounts, reserved.entry, amount)

    def learn(self, sent: int, used: Usage) -> None:
        """Learn from a reply to a request of the weight `sent`."""
        self._client.estimate.learn(sent, used)

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        self.shares = shares(run, commands)
        admitted: list[MakeCall] = []
        accounts, one = self._accounts(), Used(tool_calls=1)
        for command in commands:
            call = command.call
            try:
                if isinstance(call, Delegation):
                    sent = run.shares.get(call.id) if command.is_retry else None
                    await self._lend(accounts, call, sent)
                elif is_counted(call) and not command.is_retry:
                    entry = await self._reserve(accounts, one, waits=not self._lent)
                    await self._settle(accounts, entry, one)
            except BudgetRefused as refused:
                if not command.is_retry:
                    refuse(failure(call, "denied", f"denied: {refused.end.message}"))
                    continue
            admitted.append(command)
        return admitted

    def end_child(self, result: Result, used: Used) -> None:
        lent = self._lent.pop(result.call_id, None)
        if lent or used != Used():
            accounts, entry = lent or (self._accounts(), self._lent_entry(result.call_id))
            task = self._client.spawn(self._settle(accounts, entry, used))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def close(self, *, has_ended: bool) -> None:
        try:
            if elapsed := self._elapsed():
                entry = self._new_entry()
                await self._client.settle_surely(self._accounts(), entry, self._run_id, elapsed)
            if self._settling:
                await asyncio.wait(self._settling)
            if has_ended:
                await self._end()
        finally:  # whoever cancels this: the next owner holds it, or it is free in a while
            for _, entry in self._lent.values():
                self._client.let_go(entry)

    async def _end(self) -> None:
        """Have all counted before the run leaves its queue: nobody looks at it again then."""
        await self._client.wait_settled(self._run_id, AWAY_SECONDS)
        try:
            await self._count_all()
        except StoreError:
            counting = self._client.surely(self._count_all)
            await asyncio.wait([counting], timeout=AWAY_SECONDS)

    async def _count_all(self) -> None:
        """Count what is on record, then give back what is lent. Raises `StoreError`."""
        if self._must_adopt or self._has_delegated:  # what children used is on record by now
            await self._adopt()
        for accounts, entry in self._lent.values():
            await self._client.settle(accounts, entry, self._run_id, Used())
        self._accounts()
        await self._client.ledger.forget(list(self._used.values()), self._run_id)

    # Accounts

    def _accounts(self) -> Sequence[Account]:
        now = self._counted.now()
        if (day := int(now // SECONDS_OF_A_DAY)) != self._day:
            self._day = day
            self._shared = self._client.accounts(self._session_id, now)
            self._used |= {account.key: account for account in self._shared}
        return self._shared

    def _amount(self, usage: Usage, *, is_step: bool) -> Used:
        tokens = usage.prompt_tokens + usage.completion_tokens
        prices = self._settings.prices
        cost = prices.cost(usage) if prices else NO_USE.cost
        return Used(tokens, cost, model_calls=1, steps=int(is_step))

    def _new_entry(self) -> str:
        self._entries += 1
        return f"{self._run_id}/{self._owner}/{self._entries}"

    def _lent_entry(self, call_id: str) -> str:
        """Name what a delegation is lent: each owner of the run holds the same."""
        return f"{self._run_id}/lent/{call_id}"

    async def _lend(
        self, accounts: Sequence[Account], call: Delegation, sent: Budget | None
    ) -> None:
        """Reserve what a delegation is given, and make that its share. Raises `BudgetRefused`.

        Without a limit of the run's own it is a part of what is left: others are to go on. What a
        former owner has `sent` with it is held on, and does not wait.
        """
        self._has_delegated = True
        share, entry = sent or self.shares[call.id], self._lent_entry(call.id)
        if sent is None:
            share = await self._part(accounts, share)
        lend, waits = self._client.ledger.lend, sent is None and not self._lent
        lent = await self._ask(lend, accounts, entry, as_used(share), waits=waits)
        self._lent[call.id] = (accounts, entry)
        self.shares[call.id] = Budget(**{name: getattr(lent, name) for name, _ in share.limits})

    async def _part(self, accounts: Sequence[Account], share: Budget) -> Budget:
        """Give what a delegation may have of what is not used. Raises `BudgetRefused`."""
        try:
            sums = await self._client.ledger.used(accounts)
        except StoreError as error:
            raise BudgetRefused(_unavailable()) from error
        for account, used in zip(accounts, sums, strict=True):
            left = account.budget.left(used)
            part = left.tightened(share) if share else left.share(_LENT_PARTS)
            share = share.tightened(replace(part, wall_clock=None))
        return share

    async def _reserve(
        self, accounts: Sequence[Account], amount: Used, *, waits: bool = True
    ) -> str:
        """Reserve an amount for one call; gives its entry. Raises as `_ask`."""
        entry = self._new_entry()
        await self._ask(self._client.ledger.reserve, accounts, entry, amount, waits=waits)
        return entry

    async def _ask(
        self,
        reserve: Callable[[Sequence[Account], str, Used], Awaitable[Reserved]],
        accounts: Sequence[Account],
        entry: str,
        amount: Used,
        *,
        waits: bool,
    ) -> Used:
        """Reserve or lend; `waits` for what others have reserved. Raises `BudgetRefused`.

        While a call waits, its run takes no results, and so no share of its children back.
        """
        loop = asyncio.get_running_loop()
        backoff, away_until = None, loop.time() + AWAY_SECONDS
        while True:
            try:
                if self._must_adopt:
                    await self._adopt()
                found = await reserve(accounts, entry, amount)
            except StoreError as error:
                if loop.time() >= away_until:
                    raise BudgetRefused(_unavailable()) from error
            else:
                if found.outcome == "gone":
                    account, used = accounts[found.index], found.used[found.index]
                    end = failed(found.limit, used, account.budget, account.scope)
                    raise BudgetRefused(end)
                if found.outcome == "busy" and not waits:
                    raise BudgetRefused(lent_out(found.limit, accounts[found.index].scope))
                if found.outcome == "ok":
                    self._client.hold(accounts, entry)
                    return found.lent
                away_until = loop.time() + AWAY_SECONDS
            backoff = backoff or Backoff(_FIRST_WAIT, _LONGEST_WAIT)
            await asyncio.sleep(_FIRST_WAIT / 2 + backoff.next_delay())

    async def _settle(self, accounts: Sequence[Account], entry: str, used: Used) -> None:
        if elapsed := self._elapsed():
            used += elapsed
        sums = await self._client.settle_surely(accounts, entry, self._run_id, used)
        for account, after in zip(accounts, sums, strict=False):
            self._counted.observe(account, after)
            if not account.budget.is_near(after):
                continue
            for name in account.budget.warnings(after - used, after):
                notice = budget_warning(name, after, account.budget, account.scope)
                self._counted.notify(notice)

    def _elapsed(self) -> Used | None:
        """Give the time that was not settled yet, where it is limited."""
        if not self._is_timed:
            return None
        executed = self._counted.executed_ms()
        due, self._settled_ms = executed - self._settled_ms, executed
        return Used(wall_clock=max(0, due))

    async def _adopt(self) -> None:
        """Count what the record has, and a former owner did not come to settle."""
        ledger, recorded = self._client.ledger, self._counted.recorded()
        whole = Used()
        for account in self._accounts():
            if account.scope == "perDay":
                for day, used in recorded:
                    await ledger.adopt(replace(account, key=day), self._run_id, used)
            else:
                for _, used in recorded:
                    whole += used
                await ledger.adopt(account, self._run_id, whole)
        self._must_adopt = False


def _unavailable() -> Failed:
    return Failed(
        UNAVAILABLE,
        "the store that counts the budgets of this agent cannot be reached, so no call is made",
    )
