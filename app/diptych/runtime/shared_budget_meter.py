"""Meters what a run uses of budgets that it shares with others: its session's, and the day's.

Before the model is asked, an estimate of what it will take is reserved in the ledger; its reply
settles that. Far from all limits a run reserves for its next calls, too (`credit`). What a
delegation may use is reserved until it ends: it is lent. Where nothing is left, or nobody can say
whether anything is, the call is not made.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from diptych.loop.budget import UNLIMITED, Budget
from diptych.loop.call_graph import failure
from diptych.loop.commands import AskModel, MakeCall
from diptych.loop.events import Returned
from diptych.loop.messages import NO_USE, Delegation, Result, Usage, Used
from diptych.loop.spending import as_used, gets_share, is_counted, shares
from diptych.loop.state import Run
from diptych.ports.budgets import AHEAD_SECONDS, Account, Reserved
from diptych.runtime.agent_ledger import AgentLedger, Reservation
from diptych.runtime.credit import Credit
from diptych.runtime.estimate import Bound
from diptych.runtime.run_ledger import RunLedger
from diptych.runtime.run_meter import BudgetRefused, ModelCall, RunMeter

_MANY = 256  # times what a request may use at most: while that is left, it is not weighed
_ONE_CALL = Used(tool_calls=1)


class SharedBudgetMeter(RunMeter):
    """Counts what one run uses of its session's budget, and of the day's."""

    def __init__(self, run_ledger: RunLedger, agent_ledger: AgentLedger) -> None:
        super().__init__()
        self._run_ledger = run_ledger
        self._agent_ledger = agent_ledger
        self._lent: dict[str, tuple[Sequence[Account], str]] = {}  # to delegations, by their calls
        self._has_delegated = False
        self._credit: Credit | None = None
        self._refused: Sequence[Account] | None = None  # accounts of which it had no credit
        self._replied = 0
        self._settling: set[asyncio.Task[None]] = set()  # without the run waiting

    async def begin(self, command: AskModel) -> ModelCall:
        accounts, bound = self._run_ledger.today(), self._agent_ledger.estimate.bound(command)
        call = ModelCall(command, None, accounts, "", command.weight, bound.prompt, bound.reply)
        if self._credit is not None:
            if self._credit.take_request(call):
                return call
            await self._return_credit()
        if not await self._take_credit(call, bound):
            await self._reserve(call)
        return call

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError):  # its server has read it, and maybe charged
            call.usage = Usage(call.request_tokens)
        used, credit = call.usage, self._credit
        if credit is not None and credit.reservation.entry == call.entry:
            if not credit.end_request(call, error) or credit.is_near(self._agent_ledger.of_day):
                await self._return_credit()
        else:
            settle = partial(
                self._run_ledger.settle_use, call.accounts, call.entry, self._amount(call)
            )
            await settle(is_recorded=not isinstance(error, asyncio.CancelledError))
        if used is not None and error is None:
            self._replied += 1
            if call.weighed is None and used.prompt_tokens > call.prompt:
                call.weighed = call.request_tokens  # there is something to learn of it
            estimate = self._agent_ledger.estimate
            if call.weighed is not None or used.completion_tokens > estimate.longest:
                estimate.learn(call.weighed, used)

    def _amount(self, call: ModelCall) -> Used:
        """Give what a request has used, if a reply counts."""
        if (used := call.usage) is None:
            return NO_USE
        tokens = used.prompt_tokens, used.completion_tokens
        return self._agent_ledger.estimate.amount(*tokens, steps=int(call.is_step))

    async def _take_credit(self, call: ModelCall, bound: Bound) -> bool:
        """Reserve for the calls ahead, too, if that is far from the end of all limits.

        Not where time is limited (each request asks whether some is left), nor while the ledger is
        away. Gives whether it did: if not, the call is to be reserved by itself.
        """
        accounts, agent_ledger, run_ledger = call.accounts, self._agent_ledger, self._run_ledger
        if agent_ledger.is_timed or run_ledger.must_count_record or self._refused is accounts:
            return False
        if (far := bound.far_accounts(accounts, run_ledger.known)) is None:
            return False
        entry = call.entry = next(agent_ledger.new_entries)
        until = asyncio.get_running_loop().time() + AHEAD_SECONDS
        found = await run_ledger.try_reserve(accounts, far, entry, bound.ahead)
        if found is None:
            return False
        if found.outcome != "ok":
            self._refused = accounts  # others have used or reserved more: to ask again costs twice
            return False
        whole = Reservation(accounts, entry, until, AHEAD_SECONDS, self._return_idle_credit)
        agent_ledger.keep_renewing(whole)
        self._credit = Credit(whole, bound, call, agent_ledger.of_day)
        return True

    def _detach_credit(self) -> Credit | None:
        """Draw on the credit no more; gives it, to be settled by the caller.

        A request that is under way, as it takes longer to be cancelled than its run to end, is then
        settled by itself: an entry is settled once.
        """
        credit, self._credit = self._credit, None
        if credit is not None and credit.in_flight is not None:
            credit.in_flight.entry = next(self._agent_ledger.new_entries)
        return credit

    async def _return_credit(self) -> None:
        """Settle what was used of the credit; the rest is free for others."""
        if credit := self._detach_credit():
            used, whole = credit.used(self._agent_ledger.estimate), credit.reservation
            await self._run_ledger.settle_use(whole.accounts, whole.entry, used)

    async def _leave_credit(self) -> None:
        """Return credit when the run is left to another owner.

        What is on record is counted of the record, as the next owner does, which counts once
        whoever does it. Only the requests that are on no record are settled here.
        """
        if credit := self._detach_credit():
            calls = credit.unrecorded(self._run_ledger.unrecorded(self._replied))
            unrecorded = sum(map(self._amount, calls), NO_USE)
            entry = credit.reservation.entry
            await self._run_ledger.leave(credit.reservation.accounts, entry, unrecorded)

    def _return_idle_credit(self) -> None:
        """Return credit that a run does not need now, as it waits for a tool or for somebody."""
        credit = self._credit
        if credit is None or credit.in_flight:
            return
        if credit.is_idle:
            self._detach_credit()
            used = credit.used(self._agent_ledger.estimate)
            self._settle_soon(credit.reservation.accounts, credit.reservation.entry, used)
        credit.is_idle = True

    def _settle_soon(self, accounts: Sequence[Account], entry: str, used: Used) -> None:
        """Settle without waiting; `close` does."""
        task = self._agent_ledger.spawn(self._run_ledger.settle_use(accounts, entry, used))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _reserve(self, call: ModelCall) -> None:
        """Reserve for one request; weigh it where its weight matters. Raises `BudgetRefused`."""
        agent_ledger, estimate = self._agent_ledger, self._agent_ledger.estimate
        if not self._run_ledger.have_left(estimate.amount(call.prompt * _MANY, call.reply * _MANY)):
            call.weighed = call.request_tokens
            call.prompt = estimate.prompt_at_most(call.weighed)
        expected = estimate.amount(call.prompt, call.reply, steps=int(call.is_step))
        call.entry = next(agent_ledger.new_entries)
        reserve = partial(agent_ledger.store.reserve, call.accounts, call.entry, expected)
        try:
            found = await self._run_ledger.ask(call.accounts, reserve)
        except (asyncio.CancelledError, BudgetRefused):  # nobody knows whether it is reserved
            agent_ledger.settle_in_background(
                call.accounts, call.entry, self._run_ledger.run_id, NO_USE
            )
            raise
        self._run_ledger.update_known(call.accounts, found.used)
        agent_ledger.keep_renewing(Reservation(call.accounts, call.entry))

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        self.shares = {}
        admitted: list[MakeCall] = []
        accounts = self._run_ledger.today()
        for command in commands:
            call = command.call
            try:
                if gets_share(call, run):
                    self.shares = self.shares or shares(run, commands)
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

    def take_up(self, call: Delegation) -> None:
        self._has_delegated = True
        self._lent[call.id] = self._run_ledger.today(), self._lent_entry(call.id)

    def end_child(self, result: Result, used: Used) -> None:
        lent = self._lent.pop(result.call_id, None)
        if lent or used != NO_USE:
            accounts, entry = lent or (self._run_ledger.today(), self._lent_entry(result.call_id))
            self._settle_soon(accounts, entry, used)

    async def close(self, *, has_ended: bool) -> None:
        self._run_ledger.has_ended = has_ended
        if has_ended and self._is_all_but_credit_counted() and (credit := self._detach_credit()):
            used, whole = credit.used(self._agent_ledger.estimate), credit.reservation
            end = partial(self._run_ledger.end_run, whole.entry, used, whole.accounts)
            await self._agent_ledger.finish(end)
            return
        try:
            await (self._return_credit() if has_ended else self._leave_credit())
            await self._run_ledger.settle_time()
            if self._settling:
                await asyncio.wait(self._settling)
            if has_ended:
                count = partial(self._count_all, next(self._agent_ledger.new_entries))
                await self._agent_ledger.finish_late(count)
        finally:  # whoever cancels this: the next owner renews it, or it is free in a while
            for _, entry in self._lent.values():
                self._agent_ledger.stop_renewing(entry)

    def _is_all_but_credit_counted(self) -> bool:
        """Whether no more is to be counted at the end than what was used of the credit."""
        run_ledger = self._run_ledger
        if self._credit is None or self._has_delegated or self._settling:
            return False
        if run_ledger.must_count_record or run_ledger.earlier:
            return False
        return run_ledger.run_id not in self._agent_ledger.late

    async def _count_all(self, entry: str) -> None:
        """Count what is on record, then give back what is lent, and end. Raises `StoreError`.

        What was to be settled before is waited for: it is on record, and would count once more.
        """
        await self._agent_ledger.wait_settled(self._run_ledger.run_id)
        if self._run_ledger.must_count_record or self._has_delegated:  # children's use is on record
            await self._run_ledger.count_record()
        for accounts, lent in self._lent.values():
            await self._agent_ledger.settle_once(accounts, lent, self._run_ledger.run_id, NO_USE)
        await self._run_ledger.end_run(entry, NO_USE)

    def _lent_entry(self, call_id: str) -> str:
        """Name what a delegation is lent: the same for each owner of the run."""
        return f"{self._run_ledger.run_id}/lent/{call_id}"

    async def _lend(
        self, accounts: Sequence[Account], call: Delegation, sent: Budget | None
    ) -> None:
        """Reserve what a delegation is given, and make that its share. Raises `BudgetRefused`.

        Of what the run itself does not limit it is a part of what is left: others are to go on.
        What a former owner has `sent` with it is renewed, and does not wait.
        """
        self._has_delegated = True
        entry, wanted = self._lent_entry(call.id), self.shares.get(call.id, UNLIMITED)
        share = sent or UNLIMITED

        async def lend() -> Reserved:  # what is left changes while it waits
            nonlocal share
            if sent is None:
                share = await self._run_ledger.part(accounts, wanted)
            return await self._agent_ledger.store.reserve_up_to(accounts, entry, as_used(share))

        waits, self._lent[call.id] = sent is None and not self._lent, (accounts, entry)
        try:
            found = await self._run_ledger.ask(accounts, lend, waits=waits)
        except BudgetRefused:  # where nobody could be asked it may be lent
            self.end_child(Result(call.id, ""), NO_USE)
            raise
        self._agent_ledger.keep_renewing(Reservation(accounts, entry, seconds=AHEAD_SECONDS))
        given = {name: getattr(found.amount, name) for name, _ in share.limits}
        self.shares[call.id] = Budget(**given)

    async def _spend(self, accounts: Sequence[Account], used: Used) -> None:
        """Count what is about to be used, in one step. Raises `BudgetRefused`."""
        agent_ledger, run_ledger, credit = self._agent_ledger, self._run_ledger, self._credit
        if credit is not None and credit.take_tool_call(accounts):
            return
        entry = next(agent_ledger.new_entries)
        spend = partial(agent_ledger.store.spend, accounts, entry, run_ledger.run_id, used)
        found = await run_ledger.ask(accounts, spend, waits=not self._lent)
        run_ledger.update_known(accounts, found.used)
        run_ledger.update_day_and_warn(accounts, found.used)
