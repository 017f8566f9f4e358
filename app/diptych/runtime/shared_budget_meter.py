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
from diptych.runtime.metered_call import MeteredCall
from diptych.runtime.run_meter import BudgetRefused, RunMeter

AWAY_SECONDS = 10.0  # for which a call waits for a ledger that is away; then it is not made
_LENT_PARTS = 4  # of what is left, for one delegation of a run without a limit of its own
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5  # seconds, for what others have reserved
_ONE_CALL = Used(tool_calls=1)


@dataclass
class CountedRun:
    """The run that is metered, as its executor knows it.

    `has_run` says whether it has run elsewhere before, `executed_ms` for how long it has run here,
    `recorded` what its record says it has used, by days.
    """

    has_run: bool
    now: Callable[[], float]
    notify: Callable[[Notice], None]
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
        self._must_adopt = counted.has_run
        self._is_timed = client.is_timed
        self._day = -1
        self._shared: Sequence[Account] = ()  # of that day
        self._settled_ms = 0
        self._used: dict[str, Account] = {}
        self._lent: dict[str, tuple[Sequence[Account], str]] = {}  # to delegations, by their calls
        self._has_delegated = False
        self._settling: set[asyncio.Task[None]] = set()  # what delegations have used

    def model_call(self, command: AskModel) -> MeteredCall:
        return MeteredCall(self, command)

    async def reserve(self, call: MeteredCall) -> None:
        client, command = self._client, call.command
        call.sent = call.request_tokens
        expected = self._amount(command, client.estimate.reserved(command, call.sent))
        call.accounts = accounts = self._accounts()
        call.entry = entry = next(client.entries)
        await self._ask(client.ledger.reserve, accounts, entry, expected)
        client.hold(accounts, entry)

    async def settle(self, call: MeteredCall, *, has_failed: bool) -> None:
        used = call.used
        amount = NO_USE if used is None else self._amount(call.command, used)
        await self._settle(call.accounts, call.entry, amount)
        if used is not None and not has_failed:
            self._client.estimate.learn(call.sent, used)

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        self.shares = shares(run, commands)
        admitted: list[MakeCall] = []
        accounts = self._accounts()
        for command in commands:
            call = command.call
            try:
                if isinstance(call, Delegation):
                    sent = run.shares.get(call.id) if command.is_retry else None
                    await self._lend(accounts, call, sent)
                elif is_counted(call) and not command.is_retry:
                    await self._spend(accounts, _ONE_CALL)
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
            if self._is_timed:
                elapsed = self._elapsed()
                entry = next(self._client.entries)
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

    def _amount(self, command: AskModel, usage: Usage) -> Used:
        tokens = usage.prompt_tokens + usage.completion_tokens
        prices = self._settings.prices
        cost = prices.cost(usage) if prices else NO_USE.cost
        is_step = command.purpose in ("actions", "either")
        return Used(tokens, cost, 1, 0, int(is_step))

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
        lent = (await self._ask(lend, accounts, entry, as_used(share), waits=waits)).lent
        self._client.hold(accounts, entry)
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

    async def _spend(self, accounts: Sequence[Account], used: Used) -> None:
        """Count what is about to be used, in one step. Raises `BudgetRefused`."""

        def spend(accounts: Sequence[Account], entry: str, used: Used) -> Awaitable[Reserved]:
            return self._client.ledger.spend(accounts, entry, self._run_id, used)

        entry = next(self._client.entries)
        found = await self._ask(spend, accounts, entry, used, waits=not self._lent)
        self._watch(accounts, used, found.used)

    async def _ask(
        self,
        reserve: Callable[[Sequence[Account], str, Used], Awaitable[Reserved]],
        accounts: Sequence[Account],
        entry: str,
        amount: Used,
        *,
        waits: bool = True,
    ) -> Reserved:
        """Reserve, lend or spend; `waits` for what others have reserved. Raises `BudgetRefused`.

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
                if found.outcome == "ok":
                    return found
                if found.outcome == "gone" or not waits:
                    raise BudgetRefused(_refusal(accounts, found))
                away_until = loop.time() + AWAY_SECONDS
            backoff = backoff or Backoff(_FIRST_WAIT, _LONGEST_WAIT)
            await asyncio.sleep(_FIRST_WAIT / 2 + backoff.next_delay())

    async def _settle(self, accounts: Sequence[Account], entry: str, used: Used) -> None:
        if self._is_timed:
            used += self._elapsed()
        sums = await self._client.settle_surely(accounts, entry, self._run_id, used)
        self._watch(accounts, used, sums)

    def _watch(self, accounts: Sequence[Account], added: Used, sums: Sequence[Used]) -> None:
        """Note what is used now, and tell who watches when it is 80 % of a limit."""
        for account, used in zip(accounts, sums, strict=False):
            if account.scope == "perDay":
                self._client.of_day = account, used
            if not account.budget.is_near(used):
                continue
            for name in account.budget.warnings(used - added, used):
                notice = budget_warning(name, used, account.budget, account.scope)
                self._counted.notify(notice)

    def _elapsed(self) -> Used:
        """Give the time that was not settled yet."""
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


def _refusal(accounts: Sequence[Account], found: Reserved) -> Failed:
    account = accounts[found.place]
    if found.outcome == "busy":
        return lent_out(found.limit, account.scope)
    return failed(found.limit, found.used[found.place], account.budget, account.scope)


def _unavailable() -> Failed:
    return Failed(
        "budget_unavailable",
        "the store that counts the budgets of this agent cannot be reached, so no call is made",
    )
