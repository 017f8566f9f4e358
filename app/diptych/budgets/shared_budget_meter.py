"""Meters what a run uses of budgets that it shares with others: its session's, and the day's.

Before the model is asked, an estimate of what it will take is reserved in the ledger; its reply
settles that. A delegation's share is reserved until it ends. A call is not made if nothing is left,
or if the ledger does not answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from diptych.budgets.agent_ledger import AgentLedger
from diptych.budgets.run_ledger import RunLedger
from diptych.budgets.run_meter import BudgetRefused, ModelCall, RunMeter
from diptych.core.budget import LIMITS, UNLIMITED, Budget
from diptych.core.call_graph import failure
from diptych.core.commands import AskModel, MakeCall
from diptych.core.events import Returned
from diptych.core.messages import NO_USE, Delegation, Result, Usage, Used
from diptych.core.spending import gets_share, is_counted, shares
from diptych.core.state import Run
from diptych.ports.budgets import Account

_ONE_CALL = Used(tool_calls=1)


class SharedBudgetMeter(RunMeter):
    """Counts what one run uses of its session's budget, and of the day's."""

    def __init__(self, run_ledger: RunLedger, agent_ledger: AgentLedger) -> None:
        super().__init__()
        self._run_ledger = run_ledger
        self._agent_ledger = agent_ledger
        self._reserved: dict[str, tuple[Sequence[Account], str]] = {}  # for delegations, by call id
        self._has_delegated = False
        self._settling: set[asyncio.Task[None]] = set()  # without the run waiting

    async def begin(self, command: AskModel) -> ModelCall:
        accounts, ledger = self._run_ledger.today(), self._agent_ledger
        call = ModelCall(command, None, accounts, next(ledger.new_entries))
        prompt = ledger.estimate.prompt_at_most(call.request_tokens)
        reply = ledger.estimate.reply_at_most(command)
        expected = ledger.estimate.amount(prompt, reply, steps=int(call.is_step))
        reserve = partial(ledger.store.reserve, accounts, call.entry, expected)
        try:
            await self._run_ledger.ask(accounts, reserve)
        except (asyncio.CancelledError, BudgetRefused):  # it may be reserved
            ledger.settle_in_background(accounts, call.entry, self._run_ledger.run_id, NO_USE)
            raise
        ledger.keep_renewing(accounts, call.entry)
        return call

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        is_cut_off = isinstance(error, asyncio.CancelledError)
        if is_cut_off:  # its server has read it, and maybe charged
            call.usage = Usage(call.request_tokens)
        used, estimate = call.usage, self._agent_ledger.estimate
        amount = NO_USE
        if used is not None:
            steps = int(call.is_step)
            amount = estimate.amount(used.prompt_tokens, used.completion_tokens, steps=steps)
        await self._run_ledger.settle_use(
            call.accounts, call.entry, amount, is_recorded=not is_cut_off
        )
        if used is not None and error is None:
            estimate.learn(call.request_tokens, used)

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        self.shares = shares(run, commands)
        admitted: list[MakeCall] = []
        accounts = self._run_ledger.today()
        parts = len(self.shares) + 1  # one is left for others
        for command in commands:
            call = command.call
            try:
                if gets_share(call, run):
                    if command.is_retry:
                        await self._reserve_again(accounts, call, run.shares.get(call.id))
                    else:
                        await self._reserve_share(accounts, call, parts)
                        parts -= 1
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
        self._reserved[call.id] = self._run_ledger.today(), self._entry_of(call.id)

    def end_child(self, result: Result, used: Used) -> None:
        reserved = self._reserved.pop(result.call_id, None)
        if reserved or used != NO_USE:
            accounts, entry = reserved or (self._run_ledger.today(), self._entry_of(result.call_id))
            self._settle_soon(accounts, entry, used)

    async def close(self, *, has_ended: bool) -> None:
        self._run_ledger.has_ended = has_ended
        try:
            await self._run_ledger.settle_time()
            if self._settling:
                await asyncio.wait(self._settling)
            if has_ended:
                await self._agent_ledger.finish(self._count_all)
        finally:  # whoever cancels this: the next owner renews it, or it is free in a while
            for _, entry in self._reserved.values():
                self._agent_ledger.stop_renewing(entry)

    async def _count_all(self) -> None:
        """Count the record, return what is reserved for delegations, and end. Raises `StoreError`.

        What was to be settled before is waited for: it is on record, and would count once more.
        """
        await self._agent_ledger.wait_settled(self._run_ledger.run_id)
        if self._run_ledger.must_count_record or self._has_delegated:  # children's use is on record
            await self._run_ledger.count_record()
        for accounts, entry in self._reserved.values():
            await self._agent_ledger.settle_once(accounts, entry, self._run_ledger.run_id, NO_USE)
        await self._run_ledger.end_run()

    def _entry_of(self, call_id: str) -> str:
        """Name what is reserved for a delegation: the same for each owner of the run."""
        return f"{self._run_ledger.run_id}/share/{call_id}"

    async def _reserve_share(
        self, accounts: Sequence[Account], call: Delegation, parts: int
    ) -> None:
        """Reserve what a delegation is given, and make that its share. Raises `BudgetRefused`.

        Where the run has no limit itself, the share is one of `parts` of the remainder.
        """
        waits = not self._reserved
        await self._reserve(accounts, call, self.shares.get(call.id, UNLIMITED), parts, waits=waits)

    async def _reserve_again(
        self, accounts: Sequence[Account], call: Delegation, sent: Budget | None
    ) -> None:
        """Renew what a former owner has reserved for a delegation, or reserve it anew at once."""
        await self._reserve(accounts, call, sent or UNLIMITED, 1, waits=False)

    async def _reserve(
        self,
        accounts: Sequence[Account],
        call: Delegation,
        wanted: Budget,
        parts: int,
        *,
        waits: bool,
    ) -> None:
        self._has_delegated = True
        ledger, entry = self._agent_ledger, self._entry_of(call.id)
        self._reserved[call.id] = accounts, entry
        reserve = partial(ledger.store.reserve_share, accounts, entry, wanted, parts)
        try:
            found = await self._run_ledger.ask(accounts, reserve, waits=waits)
        except BudgetRefused:  # without an answer it may be reserved
            self.end_child(Result(call.id, ""), NO_USE)
            raise
        ledger.keep_renewing(accounts, entry)
        limited = {
            name for budget in (wanted, *(a.budget for a in accounts)) for name, _ in budget.limits
        }
        given = {name: getattr(found.amount, name) for name in LIMITS if name in limited}
        given.pop("wall_clock", None)
        self.shares[call.id] = Budget(**given)

    def _settle_soon(self, accounts: Sequence[Account], entry: str, used: Used) -> None:
        """Settle without waiting; `close` does."""
        task = self._agent_ledger.spawn(self._run_ledger.settle_use(accounts, entry, used))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _spend(self, accounts: Sequence[Account], used: Used) -> None:
        """Count what is about to be used, in one step. Raises `BudgetRefused`."""
        ledger, run_ledger = self._agent_ledger, self._run_ledger
        entry = next(ledger.new_entries)
        spend = partial(ledger.store.spend, accounts, entry, run_ledger.run_id, used)
        found = await run_ledger.ask(accounts, spend, waits=not self._reserved)
        run_ledger.update_day_and_warn(accounts, found.used)
