"""The ledger as all runs of a process use it: what is renewed, and what is settled late."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from diptych.budgets.estimate import Estimate
from diptych.core.budget import Limit, SharedBudgets
from diptych.core.errors import StoreError
from diptych.core.messages import NO_USE, Used
from diptych.net.backoff import Backoff
from diptych.ports.budgets import RESERVED_SECONDS, Account, Ledger

SECONDS_OF_A_DAY = 24 * 3600  # of Unix time, which knows no leap seconds
_DAY_KEPT_SECONDS = 2.0 * SECONDS_OF_A_DAY  # for which a day's account is kept
AWAY_SECONDS = 10.0  # for which a call waits for a ledger that is away; then it is not made
_MOST_WARNED = 10_000  # accounts
_FIRST_RETRY, _LONGEST_RETRY = 0.02, 1.0  # seconds


def session_key(session_id: str) -> str:
    """Name a session's account."""
    return f"session:{session_id}"


def day_key(now: float) -> str:
    """Name a day's account: a day begins at midnight UTC."""
    return f"day:{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"


class AgentLedger:
    """Reaches the ledger of an agent, for its runs in this process; settles until it is done.

    The account of a session is kept for `session_seconds` after it was used last. No process has
    the `name` of another one, or of one before.
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
        self.budgets = budgets
        limits = (budgets.per_session.wall_clock, budgets.per_day.wall_clock)
        self.is_timed = limits != (None, None)
        """Whether the time is limited that runs execute."""
        self.estimate = estimate
        self.session_seconds = session_seconds
        self._limits_sessions, self._limits_days = bool(budgets.per_session), bool(budgets.per_day)
        self._day = -1.0
        self._renewed: dict[str, Sequence[Account]] = {}  # by their entries
        self._is_watching = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.late: dict[str, set[asyncio.Task[Any]]] = {}
        """What is still to be settled, by the runs that have used it."""
        self.new_entries: Iterator[str] = map(f"{name}/{{}}".format, count(1))
        """Names for uses of the ledger; each is new."""
        self.of_day: tuple[Account, Used] | None = None
        """What this process knows to be used of the newest day."""
        self._warned: dict[str, set[Limit]] = {}  # limits of which a run here has told, by accounts

    def accounts(self, session_id: str, now: float) -> list[Account]:
        """Give the accounts that a run of a session shares at a time: those with limits."""
        accounts: list[Account] = []
        if self._limits_sessions:
            key, budget = session_key(session_id), self.budgets.per_session
            accounts.append(Account("perSession", key, budget, self.session_seconds))
        if self._limits_days:
            day = now // SECONDS_OF_A_DAY
            if day != self._day:  # it is the same for all runs, as its key is dear to write
                self._day, budget = day, self.budgets.per_day
                self._day_account = Account("perDay", day_key(now), budget, _DAY_KEPT_SECONDS)
            accounts.append(self._day_account)
        return accounts

    def keep_renewing(self, accounts: Sequence[Account], entry: str) -> None:
        """Renew a reservation in time, until `stop_renewing`."""
        self._renewed[entry] = accounts
        if not self._is_watching:
            self._is_watching = True
            self.spawn(self._watch())

    def stop_renewing(self, entry: str) -> None:
        """Leave a reservation alone: it is settled, renewed by another process, or to run out."""
        self._renewed.pop(entry, None)

    def settle_in_background(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> None:
        """Settle, whoever cancels the run, and however long the store is away; do not wait."""
        late = self.retry_in_background(lambda: self.settle_once(accounts, entry, run_id, used))
        self.late.setdefault(run_id, set()).add(late)
        late.add_done_callback(lambda done: self._forget_late(run_id, done))

    async def settle_once(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> None:
        """Settle in one attempt. Raises `StoreError`."""
        await self.store.settle(accounts, entry, run_id, used)
        self.stop_renewing(entry)

    def update_day(self, account: Account, used: Used) -> None:
        """Take over what is used of a day, unless it is an older one."""
        if not self.of_day or account.key >= self.of_day[0].key:
            self.of_day = account, used

    def take_warnings(self, account: Account, used: Used) -> list[Limit]:
        """Name the limits of which 80 % are used, for the first run here that asks for each."""
        if len(self._warned) >= _MOST_WARNED:
            self._warned.clear()  # to be told twice does no harm
        told = self._warned.setdefault(account.key, set())
        names = [n for n in account.budget.warnings(NO_USE, used) if n not in told]
        told.update(names)
        return names

    async def wait_settled(self, run_id: str) -> None:
        """Wait until what a run has used is settled."""
        if late := self.late.get(run_id):
            await asyncio.wait(late)

    def retry_in_background(
        self, step: Callable[[], Coroutine[Any, Any, Any]]
    ) -> asyncio.Task[None]:
        """Take a step again and again, until the store does not fail; do not wait."""
        return self.spawn(_until_done(step))

    async def finish(self, step: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Wait a while for the last step of a run: nobody looks again when that has ended."""
        await asyncio.wait([self.retry_in_background(step)], timeout=AWAY_SECONDS)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let something be done that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Give up what is not done; whoever goes on with a run counts its record."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget_late(self, run_id: str, done: asyncio.Task[Any]) -> None:
        late = self.late.get(run_id, set())
        late.discard(done)
        if not late:
            self.late.pop(run_id, None)

    async def _watch(self) -> None:
        """Renew reservations in time."""
        try:
            while self._renewed:
                await asyncio.sleep(RESERVED_SECONDS / 3)
                await _until_done(self._renew)
        finally:
            self._is_watching = False

    async def _renew(self) -> None:
        """Renew all, those of the same accounts together. Raises `StoreError`."""
        alike: dict[tuple[Account, ...], list[str]] = {}
        for entry, accounts in self._renewed.items():
            alike.setdefault(tuple(accounts), []).append(entry)
        for accounts, entries in alike.items():
            await self.store.renew(accounts, entries)


async def _until_done(step: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
    while True:
        try:
            await step()
        except StoreError:
            await asyncio.sleep(backoff.next_delay())
        else:
            return
