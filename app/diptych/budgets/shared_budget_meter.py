"""Meters the budgets that runs share: their session's, and the day's (decision 145).

Before a call an upper estimate of its use is reserved in the ledger; its end settles that. If
nothing is left, or the ledger does not answer, no call is made.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count, groupby
from typing import Any, Protocol

from diptych.budgets.recorded_use import RecordedUse, with_times_asked
from diptych.budgets.run_meter import BudgetRefused, ModelCall, RunMeter, budget_warning
from diptych.core.approval_records import waited_seconds
from diptych.core.budget import LIMITS, UNLIMITED, Budget, Limit, Prices, SharedBudgets
from diptych.core.call_graph import failure
from diptych.core.codec import Record
from diptych.core.commands import AskModel, MakeCall
from diptych.core.errors import StoreError
from diptych.core.events import Failed, Returned
from diptych.core.messages import NO_USE, Delegation, Result, Usage, Used
from diptych.core.spending import all_reserved, gets_share, is_counted, shares, used_up
from diptych.core.state import Run
from diptych.net.backoff import Backoff
from diptych.ports import Clock, Notice
from diptych.ports.budgets import RESERVED_SECONDS, Account, Ledger, Reserved

AWAY_SECONDS = 10.0  # for which a call waits for a ledger that is away; then it is not made
SECONDS_OF_A_DAY = 24 * 3600  # of Unix time, which knows no leap seconds
_SETTLE_SECONDS = 0.2  # for which a run waits until its use is settled, before it goes on
_DAY_KEPT_SECONDS = 2.0 * SECONDS_OF_A_DAY
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5  # seconds, for what others have reserved
_FIRST_RETRY, _LONGEST_RETRY = 0.02, 1.0  # seconds
_MOST_WARNED = 10_000  # accounts
_REPLY_TOKENS = 4_096  # assumed of a reply that nothing bounds, until a longer one came
_UNKNOWN_OVERHEAD = 4_096  # tokens of a prompt beyond its weight, until a reply says its usage
_LONG_PROMPT = 200  # weight; a shorter prompt is mostly the model's chat template
_ONE_CALL = Used(tool_calls=1)
_UNAVAILABLE = Failed(
    "budget_unavailable",
    "the store that counts the budgets of this agent cannot be reached, so no call is made",
)


def session_key(session_id: str) -> str:
    """Return the key of a session's account."""
    return f"session:{session_id}"


def day_key(now: float) -> str:
    """Return the key of a day's account; a day begins at midnight UTC."""
    return f"day:{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"


@dataclass
class Estimate:
    """Upper bounds of requests and replies, learned from all runs of a process.

    `prices`, and `reply_tokens`, the bound of a reply, are the manifest's.
    """

    prices: Prices
    reply_tokens: int | None = None
    overhead: int | None = None  # tokens of a prompt beyond our estimate
    factor: float = 1.0  # tokens per unit of weight, of long prompts
    longest: int = 0  # of the replies

    def of_request(self, call: ModelCall) -> Used:
        """Return the most that a request is expected to use."""
        weight = call.request_tokens
        overhead = _UNKNOWN_OVERHEAD if self.overhead is None else self.overhead
        prompt = max(weight + overhead, math.ceil(weight * self.factor))
        bound = call.command.request.parameters.get("max_tokens", self.reply_tokens)
        reply = bound if isinstance(bound, int) else max(_REPLY_TOKENS, self.longest)
        return self.amount(Usage(prompt, reply), steps=int(call.is_step))

    def amount(self, usage: Usage, *, steps: int) -> Used:
        """Return what one request with this usage is charged."""
        of_prompt, of_reply = self.prices.of_one
        cost = of_prompt * usage.prompt_tokens + of_reply * usage.completion_tokens
        tokens = usage.prompt_tokens + usage.completion_tokens
        return Used(tokens, cost, model_calls=1, steps=steps)

    def learn(self, weight: int, used: Usage) -> None:
        """Learn from a reply, and from the weight of its request."""
        self.longest = max(self.longest, used.completion_tokens)
        self.overhead = max(self.overhead or 0, used.prompt_tokens - weight)
        if weight >= _LONG_PROMPT:
            self.factor = max(self.factor, used.prompt_tokens / weight)


class AgentLedger:
    """The shared accounts of an agent, and what this process has reserved of them.

    A session's account is kept for `session_seconds` after its last use. `name` is unique to this
    process, so that its entries are.
    """

    def __init__(
        self,
        store: Ledger,
        budgets: SharedBudgets,
        estimate: Estimate,
        session_seconds: float,
        name: str,
    ) -> None:
        self.store = store
        self.estimate = estimate
        self.is_timed = (budgets.per_session.wall_clock, budgets.per_day.wall_clock) != (None, None)
        self.new_entries: Iterator[str] = map(f"{name}/{{}}".format, count(1))
        self.of_day: tuple[Account, Used] | None = None
        """The newest day's account, and what this process knows to be used of it."""
        self._budgets = budgets
        self._session_seconds = session_seconds
        self._renewed: dict[str, Sequence[Account]] = {}  # reservations, by their entries
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned: dict[str, set[Limit]] = {}  # by the keys of accounts

    def accounts(self, session_id: str, now: float) -> list[Account]:
        """Return the accounts that have limits for a run of this session at this time."""
        of_session, of_day = self._budgets.per_session, self._budgets.per_day
        accounts: list[Account] = []
        if of_session:
            key = session_key(session_id)
            accounts.append(Account("perSession", key, of_session, self._session_seconds))
        if of_day:
            accounts.append(Account("perDay", day_key(now), of_day, _DAY_KEPT_SECONDS))
        return accounts

    def keep_renewing(self, accounts: Sequence[Account], entry: str) -> None:
        """Renew a reservation in time, until `stop_renewing`."""
        self._renewed[entry] = accounts
        if self._renewing is None or self._renewing.done():
            self._renewing = self.spawn(self._renew())

    def stop_renewing(self, entry: str) -> None:
        self._renewed.pop(entry, None)

    def note_use(self, account: Account, used: Used) -> list[Limit]:
        """Note an account's use; returns the limits that this process first sees at 80 %."""
        if account.scope == "perDay" and (not self.of_day or account.key >= self.of_day[0].key):
            self.of_day = account, used
        if not account.budget.is_warned(used):
            return []
        if len(self._warned) >= _MOST_WARNED:
            self._warned.clear()  # a second warning does no harm
        warned = self._warned.setdefault(account.key, set())
        names = [name for name in account.budget.warnings(NO_USE, used) if name not in warned]
        warned.update(names)
        return names

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with this process at the latest."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Cancel pending work; a run's next owner counts its log."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self) -> None:
        while self._renewed:
            await asyncio.sleep(RESERVED_SECONDS / 3)
            for entry, accounts in tuple(self._renewed.items()):
                await until_done(partial(self.store.renew, accounts, [entry]))


class CountedLog(Protocol):
    """A run's log, as the meter sees it."""

    run_id: str
    session_id: str

    @property
    def records(self) -> Sequence[Record]: ...

    def notify(self, notice: Notice) -> None: ...


class SharedBudgetMeter(RunMeter):
    """Charges one run's usage to its session's and the day's budget."""

    def __init__(
        self, ledger: AgentLedger, clock: Clock, log: CountedLog, prices: Prices | None
    ) -> None:
        super().__init__()
        self._ledger = ledger
        self._now = clock.now
        self._log = log
        self._prices = prices
        self._must_count_record = len(log.records) > 1  # a former owner may have died unsettled
        self._began = clock.now()
        self._waited = waited_seconds(log.records, self._began)
        self._settled_ms = 0
        self._touched: dict[str, Account] = {}  # that may have counted anything of this run, by key
        self._reserved: dict[str, tuple[Sequence[Account], str]] = {}  # for delegations, by call id
        self._settling: set[asyncio.Task[None]] = set()
        self._has_ended = False

    async def begin(self, command: AskModel) -> ModelCall:
        accounts, ledger = self._accounts(), self._ledger
        call = ModelCall(command, None, accounts, next(ledger.new_entries))
        expected = ledger.estimate.of_request(call)
        reserve = partial(ledger.store.reserve, accounts, call.entry, expected)
        try:
            await self._ask(accounts, reserve)
        except (asyncio.CancelledError, BudgetRefused):  # it may be reserved
            self._settle(accounts, call.entry, NO_USE)
            raise
        ledger.keep_renewing(accounts, call.entry)
        return call

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        is_cut_off = isinstance(error, asyncio.CancelledError)
        if is_cut_off:  # its server has read it, and maybe charged
            call.usage = Usage(call.request_tokens)
        used, estimate = call.usage, self._ledger.estimate
        amount = estimate.amount(used, steps=int(call.is_step)) if used else NO_USE
        settled = self._settle(call.accounts, call.entry, amount, is_recorded=not is_cut_off)
        if used is not None and error is None:
            estimate.learn(call.request_tokens, used)
        await asyncio.wait([settled], timeout=_SETTLE_SECONDS)

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        self.shares = shares(run, commands)
        admitted: list[MakeCall] = []
        accounts = self._accounts()
        parts = len(self.shares) + 1  # one is left for others
        for command in commands:
            call = command.call
            try:
                if gets_share(call, run):
                    if command.is_retry:  # a former owner may have reserved it
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
            admitted.append(command)
        return admitted

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
            if self._ledger.is_timed:
                self._settle(self._accounts(), next(self._ledger.new_entries), NO_USE)
            if has_ended:  # nobody looks again later
                counting = self._ledger.spawn(until_done(self._count_all))
                await asyncio.wait([counting], timeout=AWAY_SECONDS)
            elif self._settling:
                await asyncio.wait(tuple(self._settling), timeout=_SETTLE_SECONDS)
        finally:  # the next owner renews them, or they run out
            for _, entry in self._reserved.values():
                self._ledger.stop_renewing(entry)

    def _accounts(self) -> Sequence[Account]:
        """Return the accounts of this run and today."""
        accounts = self._ledger.accounts(self._log.session_id, self._now())
        self._touched.update({account.key: account for account in accounts})
        return accounts

    async def _ask(
        self,
        accounts: Sequence[Account],
        attempt: Callable[[], Awaitable[Reserved]],
        *,
        waits: bool = True,
    ) -> Reserved:
        """Reserve or spend; `waits` while others hold the rest. Raises `BudgetRefused`."""
        loop = asyncio.get_running_loop()
        backoff, away_until = Backoff(_FIRST_WAIT, _LONGEST_WAIT), loop.time() + AWAY_SECONDS
        while True:
            try:
                if self._must_count_record:
                    await self._count_record()
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
        """Replace a reservation, if there is one, by what was used and the time since the last.

        It is tried until the store takes it, though the run is cancelled. Use that is on no record
        is settled without a run, as a run's settled use counts as a part of its record.
        """
        run_id = self._log.run_id if is_recorded else ""
        if self._ledger.is_timed:
            used += self._elapsed()

        async def settle() -> None:
            sums = await self._ledger.store.settle(accounts, entry, run_id, used)
            self._ledger.stop_renewing(entry)
            self._note_use(accounts, sums)

        task = self._ledger.spawn(until_done(settle))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _spend(self, accounts: Sequence[Account], used: Used) -> None:
        """Reserve and settle in one step. Raises `BudgetRefused`."""
        entry = next(self._ledger.new_entries)
        spend = partial(self._ledger.store.spend, accounts, entry, self._log.run_id, used)
        found = await self._ask(accounts, spend, waits=not self._reserved)
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
        """Reserve a delegation's share, or renew what a former owner has reserved.

        Of what the run does not limit itself it is one of `parts` of the remainder. Raises
        `BudgetRefused`.
        """
        ledger, entry = self._ledger, self._entry_of(call.id)
        self._reserved[call.id] = accounts, entry
        reserve = partial(ledger.store.reserve_share, accounts, entry, wanted, parts)
        try:
            found = await self._ask(accounts, reserve, waits=waits)
        except BudgetRefused:  # without an answer it may be reserved
            self.end_child(Result(call.id, ""), NO_USE)
            raise
        ledger.keep_renewing(accounts, entry)
        budgets = (wanted, *(account.budget for account in accounts))
        limited = {name for budget in budgets for name, _ in budget.limits} - {"wall_clock"}
        self.shares[call.id] = Budget(
            **{name: getattr(found.amount, name) for name in LIMITS if name in limited}
        )

    def _entry_of(self, call_id: str) -> str:
        """Name a delegation's reservation: the same for each owner of the run."""
        return f"{self._log.run_id}/share/{call_id}"

    def _note_use(self, accounts: Sequence[Account], sums: Sequence[Used]) -> None:
        for account, used in zip(accounts, sums, strict=False):
            for name in self._ledger.note_use(account, used):
                if not self._has_ended:
                    notice = budget_warning(name, used, account.budget, account.scope)
                    self._log.notify(notice)

    def _elapsed(self) -> Used:
        """Return the time that the run has executed and that is not settled yet."""
        now = self._now()
        waited = waited_seconds(self._log.records, now) - self._waited
        executed = max(0, round((now - self._began - waited) * 1000))
        due, self._settled_ms = executed - self._settled_ms, executed
        return Used(wall_clock=max(0, due))

    async def _count_all(self) -> None:
        """Count the record of a run that has ended, and give up its reservations.

        Waits for open settlements first, whose usage is in the log and would be counted twice.
        """
        while self._settling:
            await asyncio.wait(tuple(self._settling))
        await self._count_record()
        for accounts, entry in self._reserved.values():
            await self._ledger.store.settle(accounts, entry, self._log.run_id, NO_USE)
            self._ledger.stop_renewing(entry)
        await self._ledger.store.end_run(tuple(self._touched.values()), self._log.run_id)

    async def _count_record(self) -> None:
        """Count unsettled use from the record: a dead owner's, and that of children."""
        recorded = self._recorded()
        for account in self._accounts():
            if account.scope == "perDay":
                for day, used in recorded:
                    of_day = self._touched[day] = account._replace(key=day)
                    await self._ledger.store.count_record(of_day, self._log.run_id, used)
            else:
                whole = sum((used for _, used in recorded), NO_USE)
                await self._ledger.store.count_record(account, self._log.run_id, whole)
        self._must_count_record = False

    def _recorded(self) -> list[tuple[str, Used]]:
        """Return the logged usage, by the day on which it was requested."""
        use, before, found = RecordedUse(prices=self._prices), NO_USE, dict[str, Used]()
        timed = with_times_asked(self._log.records)
        for day, of_day in groupby(timed, key=lambda pair: pair[1] // SECONDS_OF_A_DAY):
            for record, _ in of_day:
                use.add(record)
            key = day_key(day * SECONDS_OF_A_DAY)
            found[key] = found.get(key, NO_USE) + use.used - before
            before = use.used
        return [(key, used) for key, used in found.items() if used != NO_USE]


async def until_done(step: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Take a step again and again, until the store does not fail."""
    backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
    while True:
        try:
            await step()
        except StoreError:
            await asyncio.sleep(backoff.next_delay())
        else:
            return


def _refusal(accounts: Sequence[Account], found: Reserved) -> Failed:
    account = accounts[found.place]
    if found.outcome == "busy":
        return all_reserved(found.limit, account.scope)
    return used_up(found.limit, found.used[found.place], account.budget, account.scope)
