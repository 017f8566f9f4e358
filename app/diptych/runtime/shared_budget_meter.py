"""Meters what a run uses of budgets that it shares with others: its session's, and the day's.

Before the model is asked, an estimate of what it will take is reserved in the ledger; its reply
settles that. Far from all limits a run reserves for its next calls, too (`credit`). Where nothing
is left, or nobody can say whether anything is, the call is not made.

Not here: the ledger (`ports.budgets`), how a run asks it (`run_accounts`), how a process does
(`ledger_client`), the run's own budget (`loop.spending`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from diptych.errors import StoreError
from diptych.loop.budget import Budget
from diptych.loop.call_graph import failure
from diptych.loop.commands import AskModel, MakeCall
from diptych.loop.events import Returned
from diptych.loop.messages import NO_USE, Delegation, Result, Usage, Used
from diptych.loop.spending import as_used, is_counted, shares
from diptych.loop.state import Run
from diptych.ports.budgets import LENT_SECONDS, Account, Reserved
from diptych.runtime.credit import Credit
from diptych.runtime.estimate import Bound
from diptych.runtime.ledger_client import LedgerClient, Reservation
from diptych.runtime.run_accounts import AWAY_SECONDS, RunAccounts
from diptych.runtime.run_meter import BudgetRefused, ModelCall, RunMeter

_Step: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
_LENT_PARTS = 4  # of what is left, for one delegation of a run without a limit of its own
_MANY = 256  # times what a request may use at most: while that is left, it is not weighed
_ONE_CALL = Used(tool_calls=1)


class SharedBudgetMeter(RunMeter):
    """Counts what one run uses of its session's budget, and of the day's."""

    def __init__(self, accounts: RunAccounts, client: LedgerClient) -> None:
        super().__init__()
        self._accounts = accounts
        self._client = client
        self._lent: dict[str, tuple[Sequence[Account], str]] = {}  # to delegations, by their calls
        self._has_delegated = False
        self._credit: Credit | None = None
        self._replied = 0
        self._settling: set[asyncio.Task[None]] = set()  # without the run waiting

    async def begin(self, command: AskModel) -> ModelCall:
        client, accounts, credit = self._client, self._accounts.today(), self._credit
        bound = client.estimate.bound(command)
        call = ModelCall(command, None, accounts, "", command.weight, bound.prompt, bound.reply)
        if credit is not None:
            if credit.covers_request(bound) and self._may_draw_on(credit, accounts):
                credit.in_flight, call.entry = call, credit.reservation.entry
                return call
            await self._return_credit()
        if not await self._take_credit(call, bound):
            await self._reserve(call)
        return call

    def _may_draw_on(self, credit: Credit, accounts: Sequence[Account]) -> bool:
        """Whether credit is of today, and certainly held."""
        now = asyncio.get_running_loop().time()
        return credit.reservation.accounts is accounts and now < credit.reservation.until

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError):  # its server has read it, and maybe charged
            call.used = Usage(call.request_tokens)
        used, credit = call.used, self._credit
        if credit is not None and credit.reservation.entry == call.entry:
            credit.end_request(call, error)
            if credit.is_overdrawn():
                await self._return_credit()
        else:
            await self._accounts.settle(call.accounts, call.entry, self._amount(call))
        if used is not None and error is None:
            self._replied += 1
            if call.weighed is None and used.prompt_tokens > call.prompt:
                call.weighed = call.request_tokens  # there is something to learn of it
            self._client.estimate.learn(call.weighed, used)

    def _amount(self, call: ModelCall) -> Used:
        """Give what a request has used, if a reply counts."""
        if (used := call.used) is None:
            return NO_USE
        tokens = used.prompt_tokens, used.completion_tokens
        return self._client.estimate.amount(*tokens, steps=int(call.is_step))

    async def _take_credit(self, call: ModelCall, bound: Bound) -> bool:
        """Reserve for the calls ahead, too, if that is far from the end of all limits.

        Otherwise, where time is limited (each request asks whether some is left), and where the
        ledger is away, the call is to be reserved by itself.
        """
        accounts, client = call.accounts, self._client
        if client.is_timed or self._accounts.must_adopt:
            return False
        if not bound.is_far(accounts, self._accounts.known):
            return False
        call.entry = next(client.new_entries)
        until = asyncio.get_running_loop().time() + LENT_SECONDS
        try:
            found = await client.ledger.lend(accounts, call.entry, bound.ahead)
        except StoreError:
            return False
        if found.outcome != "ok":
            return False
        self._accounts.update_known(accounts, found.used)
        if found.lent != bound.ahead or not bound.is_far(accounts, found.used):
            await self._accounts.settle(accounts, call.entry, NO_USE)  # others have used more
            return False
        held = Reservation(accounts, call.entry, until, LENT_SECONDS, self._return_idle_credit)
        client.hold(held)
        self._credit = Credit(held, bound, call)
        return True

    def _give_up_credit(self) -> Credit | None:
        """Draw on the credit no more; gives it, to be settled.

        A request that ends later than its run is settled by itself: each entry counts once.
        """
        credit, self._credit = self._credit, None
        if credit is not None and credit.in_flight is not None:
            credit.in_flight.entry = next(self._client.new_entries)
        return credit

    async def _return_credit(self) -> None:
        """Settle what was used of the credit; the rest is free for others."""
        if credit := self._give_up_credit():
            used = credit.used(self._client.estimate)
            await self._accounts.settle(credit.reservation.accounts, credit.reservation.entry, used)

    async def _leave_credit(self) -> None:
        """Return credit after another owner may have adopted the record of what it was used for.

        That would count twice if it were settled. So only what no record has is; the record is
        adopted here, too, which counts once.
        """
        if credit := self._give_up_credit():
            calls = credit.unrecorded(self._accounts.unrecorded(self._replied))
            unrecorded = sum(map(self._amount, calls), NO_USE)
            entry = credit.reservation.entry
            await self._accounts.leave(credit.reservation.accounts, entry, unrecorded)

    def _return_idle_credit(self) -> None:
        """Return credit that a run does not need now, as it waits for a tool or for somebody."""
        credit = self._credit
        if credit is None or credit.in_flight:
            return
        if credit.is_idle:
            self._give_up_credit()
            used = credit.used(self._client.estimate)
            self._settle_soon(credit.reservation.accounts, credit.reservation.entry, used)
        credit.is_idle = True

    def _settle_soon(self, accounts: Sequence[Account], entry: str, used: Used) -> None:
        """Settle without waiting; `close` does."""
        task = self._client.spawn(self._accounts.settle(accounts, entry, used))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _reserve(self, call: ModelCall) -> None:
        """Reserve for one request; weigh it where its weight matters. Raises `BudgetRefused`."""
        client, ask = self._client, self._accounts.ask
        estimate, call.entry = client.estimate, next(client.new_entries)
        if not self._accounts.have_left(estimate.amount(call.prompt * _MANY, call.reply * _MANY)):
            call.weighed = call.request_tokens
            call.prompt = estimate.prompt_at_most(call.weighed)
        expected = estimate.amount(call.prompt, call.reply, steps=int(call.is_step))
        found = await ask(client.ledger.reserve, call.accounts, call.entry, expected)
        self._accounts.update_known(call.accounts, found.used)
        client.hold(Reservation(call.accounts, call.entry))

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        self.shares = shares(run, commands)
        admitted: list[MakeCall] = []
        accounts = self._accounts.today()
        for command in commands:
            call = command.call
            try:
                if isinstance(call, Delegation):
                    sent = run.shares.get(call.id) if command.is_retry else None
                    await self._return_credit()
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
        if lent or used != NO_USE:
            accounts, entry = lent or (self._accounts.today(), self._lent_entry(result.call_id))
            self._settle_soon(accounts, entry, used)

    async def close(self, *, has_ended: bool) -> None:
        if has_ended and self._is_all_but_credit_counted() and (credit := self._give_up_credit()):
            used, held = credit.used(self._client.estimate), credit.reservation
            await self._end(partial(self._accounts.end_run, held.entry, used, held.accounts))
            return
        try:
            await (self._return_credit() if has_ended else self._leave_credit())
            await self._accounts.settle_time()
            if self._settling:
                await asyncio.wait(self._settling)
            if has_ended:
                await self._surely(partial(self._count_all, next(self._client.new_entries)))
        finally:  # whoever cancels this: the next owner holds it, or it is free in a while
            for _, entry in self._lent.values():
                self._client.let_go(entry)

    def _is_all_but_credit_counted(self) -> bool:
        """Whether no more is to be counted at the end than what was used of today's credit."""
        accounts = self._accounts
        if self._credit is None or self._has_delegated or accounts.must_adopt or accounts.former:
            return False
        return self._client.is_settled(accounts.run_id) and not self._settling

    async def _end(self, step: _Step) -> None:
        """Have a run end that holds nothing else: at once, as a rule."""
        try:
            await step()
        except asyncio.CancelledError:
            self._client.surely(step)
            raise
        except StoreError:
            await self._surely(step)

    async def _surely(self, step: _Step) -> None:
        """Have all counted before the run leaves its queue: nobody looks at it again then."""
        await asyncio.wait([self._client.surely(step)], timeout=AWAY_SECONDS)

    async def _count_all(self, entry: str) -> None:
        """Count what is on record, then give back what is lent, and end. Raises `StoreError`.

        What was to be settled before is waited for: it is on record, and would count once more.
        """
        await self._client.wait_settled(self._accounts.run_id)
        if self._accounts.must_adopt or self._has_delegated:  # children's use is on record
            await self._accounts.adopt()
        for accounts, lent in self._lent.values():
            await self._client.settle(accounts, lent, self._accounts.run_id, NO_USE)
        await self._accounts.end_run(entry, NO_USE)

    def _lent_entry(self, call_id: str) -> str:
        """Name what a delegation is lent: each owner of the run holds the same."""
        return f"{self._accounts.run_id}/lent/{call_id}"

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
        ask, waits = self._accounts.ask, sent is None and not self._lent
        found = await ask(self._client.ledger.lend, accounts, entry, as_used(share), waits=waits)
        self._client.hold(Reservation(accounts, entry, seconds=LENT_SECONDS))
        self._lent[call.id] = (accounts, entry)
        self.shares[call.id] = Budget(
            **{name: getattr(found.lent, name) for name, _ in share.limits}
        )

    async def _part(self, accounts: Sequence[Account], share: Budget) -> Budget:
        """Give what a delegation may have of what is not used. Raises `BudgetRefused`."""
        sums = await self._accounts.used(accounts)
        for account, used in zip(accounts, sums, strict=True):
            left = account.budget.left(used)
            part = left.tightened(share) if share else left.share(_LENT_PARTS)
            share = share.tightened(replace(part, wall_clock=None))
        return share

    async def _spend(self, accounts: Sequence[Account], used: Used) -> None:
        """Count what is about to be used, in one step. Raises `BudgetRefused`."""
        client, run_id, credit = self._client, self._accounts.run_id, self._credit
        if credit and credit.covers_tool_call() and self._may_draw_on(credit, accounts):
            credit.take_tool_call()
            return

        def spend(accounts: Sequence[Account], entry: str, used: Used) -> Awaitable[Reserved]:
            return client.ledger.spend(accounts, entry, run_id, used)

        entry, waits = next(client.new_entries), not self._lent
        found = await self._accounts.ask(spend, accounts, entry, used, waits=waits)
        self._accounts.note(accounts, used, found.used)
