"""An agent's shared budgets in one process: their accounts, reservations and estimates."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from diptych.budgets.run_meter import ModelCall
from diptych.core.budget import Budget, Limit, Prices, SharedBudgets
from diptych.core.errors import StoreError
from diptych.core.messages import NO_USE, Usage, Used
from diptych.core.run_settings import RunSettings
from diptych.net.backoff import Backoff
from diptych.ports import Clock
from diptych.ports.budgets import RESERVED_SECONDS, Account, Ledger

SECONDS_OF_A_DAY = 24 * 3600  # of Unix time, which has no leap seconds
_DAY_KEPT_SECONDS = 2.0 * SECONDS_OF_A_DAY
_FIRST_RETRY, _LONGEST_RETRY = 0.02, 1.0  # seconds
_MAX_WARNED = 10_000  # accounts
_REPLY_TOKENS = 4_096  # assumed for unbounded replies, until a longer one is seen
_UNKNOWN_OVERHEAD = 4_096  # prompt tokens beyond the weight, until a reply reports its usage
_LONG_PROMPT = 200  # weight; shorter prompts are mostly chat template


def session_key(session_id: str) -> str:
    """Return the key of a session's account."""
    return f"session:{session_id}"


def day_key(now: float) -> str:
    """Return the key of a day's account; days begin at midnight UTC."""
    return f"day:{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """The manifest's budget settings.

    `settings` has the budget of one run and the prices; `reply_tokens` is the maximum length of a
    reply, if any. A session's account is kept for `session_seconds` after its last use.
    """

    settings: RunSettings = field(default_factory=RunSettings)
    shared: SharedBudgets = field(default_factory=SharedBudgets)
    reply_tokens: int | None = None
    session_seconds: float = 24 * 3600.0


@dataclass
class Estimate:
    """Upper bounds of requests and replies, learned from all runs of a process.

    `prices` and `reply_tokens` come from the manifest.
    """

    prices: Prices
    reply_tokens: int | None = None
    overhead: int | None = None  # prompt tokens beyond the weight
    factor: float = 1.0  # tokens per unit of weight, in long prompts
    longest: int = 0  # tokens of the longest reply

    def of_request(self, call: ModelCall) -> Used:
        """Return the most that a request is expected to use."""
        weight = call.request_tokens
        overhead = _UNKNOWN_OVERHEAD if self.overhead is None else self.overhead
        prompt = max(weight + overhead, math.ceil(weight * self.factor))
        bound = call.command.request.parameters.get("max_tokens", self.reply_tokens)
        reply = bound if isinstance(bound, int) else max(_REPLY_TOKENS, self.longest)
        return self.amount(Usage(prompt, reply), steps=int(call.is_step))

    def amount(self, usage: Usage, *, steps: int) -> Used:
        """Return the charge for one request with this usage."""
        of_prompt, of_reply = self.prices.of_one
        cost = of_prompt * usage.prompt_tokens + of_reply * usage.completion_tokens
        tokens = usage.prompt_tokens + usage.completion_tokens
        return Used(tokens, cost, model_calls=1, steps=steps)

    def learn(self, weight: int, used: Usage) -> None:
        """Learn from a reply's usage and the weight of its request."""
        self.longest = max(self.longest, used.completion_tokens)
        self.overhead = max(self.overhead or 0, used.prompt_tokens - weight)
        if weight >= _LONG_PROMPT:
            self.factor = max(self.factor, used.prompt_tokens / weight)


class AgentBudgets:
    """The budgets of all runs of an agent that this process executes."""

    def __init__(self, terms: BudgetTerms, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.settings = terms.settings
        self.shared = terms.shared
        self.estimate = Estimate(terms.settings.prices or Prices(), terms.reply_tokens)
        session, day = terms.shared.per_session, terms.shared.per_day
        self.is_timed = (session.wall_clock, day.wall_clock) != (None, None)
        name = clock.token()[-12:]  # unique to this process
        self.new_entries: Iterator[str] = map(f"{name}/{{}}".format, count(1))
        self.of_day: tuple[Account, Used] | None = None
        """The newest day's account and its use, as last seen here."""
        self._session_seconds = terms.session_seconds
        self._renewed: dict[str, Sequence[Account]] = {}  # reservations, by entry
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned: dict[str, set[Limit]] = {}  # by account key

    def accounts(self, session_id: str, now: float) -> list[Account]:
        """Return the accounts with limits for a run of this session at this time."""
        accounts: list[Account] = []
        if of_session := self.shared.per_session:
            key = session_key(session_id)
            accounts.append(Account("perSession", key, of_session, self._session_seconds))
        if of_day := self.shared.per_day:
            accounts.append(Account("perDay", day_key(now), of_day, _DAY_KEPT_SECONDS))
        return accounts

    async def used(self, session_id: str) -> Mapping[str, tuple[Budget, Used]]:
        """Return the use of a session's shared budgets, by scope. Raises `StoreError`."""
        accounts = self.accounts(session_id, self.clock.now())
        sums = await self.ledger.used(accounts) if accounts else ()
        return {a.scope: (a.budget, used) for a, used in zip(accounts, sums, strict=True)}

    def note_use(self, account: Account, used: Used) -> list[Limit]:
        """Note an account's use; return the limits to warn about for the first time."""
        if account.scope == "perDay" and (not self.of_day or account.key >= self.of_day[0].key):
            self.of_day = account, used
        if not account.budget.is_warned(used):
            return []
        if len(self._warned) >= _MAX_WARNED:
            self._warned.clear()  # a second warning does no harm
        warned = self._warned.setdefault(account.key, set())
        names = [name for name in account.budget.warnings(NO_USE, used) if name not in warned]
        warned.update(names)
        return names

    def keep_renewing(self, accounts: Sequence[Account], entry: str) -> None:
        """Renew a reservation regularly, until `stop_renewing`."""
        self._renewed[entry] = accounts
        if self._renewing is None or self._renewing.done():
            self._renewing = self.spawn(self._renew())

    def stop_renewing(self, entry: str) -> None:
        self._renewed.pop(entry, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that `aclose` cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Cancel open settlements; a run's next owner charges them from its log."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self) -> None:
        while self._renewed:
            await asyncio.sleep(RESERVED_SECONDS / 3)
            for entry, accounts in tuple(self._renewed.items()):
                await until_done(partial(self.ledger.renew, accounts, [entry]))


async def until_done(step: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Retry a step until the store does not fail."""
    backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
    while True:
        try:
            await step()
        except StoreError:
            await asyncio.sleep(backoff.next_delay())
        else:
            return
