"""The daily budget of a ModelAPI, counted in Redis over all replicas of its proxy.

Before a request, an upper estimate is reserved; afterwards the usage that the reply reports is
settled in its place. A reply that reports none costs what was reserved.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diptych.budgets.agent_budgets import SECONDS_OF_A_DAY, AgentBudgets, BudgetTerms, until_done
from diptych.core.budget import Prices, SharedBudgets, limit_text
from diptych.core.errors import InvalidRequest, StoreError
from diptych.core.messages import NO_USE, Usage, Used
from diptych.http.errors import RunFailed
from diptych.model_proxy.config import ProxyConfig
from diptych.ports import Clock
from diptych.ports.budgets import Account
from diptych.stores.redis.budgets import RedisLedger
from diptych.stores.redis.connection import RedisConnection
from diptych.stores.redis.server import RedisServer

_BUSY_SECONDS = 2
_SETTLE_SECONDS = 2.0  # at the end of the process


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved request; `prices` are its model's."""

    accounts: Sequence[Account]
    entry: str
    expected: Usage
    prices: Prices


class DayBudget:
    """Reserves and settles, for a ModelAPI that has a budget."""

    def __init__(self, config: Callable[[], ProxyConfig], clock: Clock) -> None:
        def url() -> str | None:
            read = config().redis
            return read() if read else None

        self._clock = clock
        # No Agent's prefix is like that: names have no slash.
        prefix = "diptych:{}:modelapi/{}".format(*config().name.split("/"))
        self._connection = RedisConnection(RedisServer(url), prefix)
        self._budgets = AgentBudgets(BudgetTerms(), RedisLedger(self._connection), clock)
        self._settling: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None

    @property
    def of_day(self) -> tuple[Account, Used] | None:
        """The day's account and its use, as last seen here."""
        return self._budgets.of_day

    def unavailable_reason(self) -> str:
        return self._connection.unavailable_reason() if self._starting else ""

    async def reserve(self, config: ProxyConfig, model: str, expected: Usage) -> Reservation:
        """Reserve a request for the budget of a configuration. Raises `DiptychError`."""
        await self.start()
        prices = config.prices_of(model)
        if config.per_day.cost is not None and prices is None:
            message = f"ModelAPI {config.name} limits cost, and has no price for {model[:200]!r}"
            code = "model_without_price"
            raise InvalidRequest(f"{message}; add it to its spec.prices", code=code)
        budgets = self._budgets
        budgets.shared = SharedBudgets(per_day=config.per_day)
        accounts = budgets.accounts("", self._clock.now())
        found = Reservation(accounts, next(budgets.new_entries), expected, prices or Prices())
        try:
            reserved = await budgets.ledger.reserve(accounts, found.entry, _amount(found, expected))
        except StoreError as error:
            message = f"the budget of ModelAPI {config.name} cannot be counted: {error}"
            raise _failure("budget_unavailable", message, _BUSY_SECONDS) from None
        if reserved.outcome == "busy":
            message = f"the rest of the day's budget of ModelAPI {config.name} is reserved now"
            raise _failure("budget_unavailable", message, _BUSY_SECONDS)
        if reserved.outcome == "gone":
            used = limit_text(reserved.limit, reserved.used[0], config.per_day)
            message = f"the day's budget of ModelAPI {config.name} is used up: {used}"
            rest = SECONDS_OF_A_DAY - int(self._clock.now()) % SECONDS_OF_A_DAY
            raise _failure("budget_exhausted", message, rest)
        budgets.keep_renewing(accounts, found.entry)
        return found

    def settle(self, reservation: Reservation, usage: Usage | None) -> None:
        """Replace a reservation by real usage, in the background; None is no usage."""
        amount = _amount(reservation, usage) if usage else NO_USE
        accounts, entry, budgets = reservation.accounts, reservation.entry, self._budgets

        async def settle() -> None:
            sums = await budgets.ledger.settle(accounts, entry, "", amount)
            budgets.stop_renewing(entry)
            for account, used in zip(accounts, sums, strict=True):
                budgets.note_use(account, used)

        task = budgets.spawn(until_done(settle))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def start(self) -> None:
        """Connect to Redis, once."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._connection.start())
        await asyncio.shield(self._starting)

    async def aclose(self) -> None:
        """Settle what is open, for a moment, and disconnect."""
        if self._settling:
            await asyncio.wait(tuple(self._settling), timeout=_SETTLE_SECONDS)
        await self._budgets.aclose()
        if self._starting:
            await self._connection.aclose()


def _failure(code: str, message: str, retry_after: int) -> RunFailed:
    headers = {"Retry-After": str(retry_after)}
    return RunFailed(code, message, has_made_calls=False, headers=headers)


def _amount(reservation: Reservation, usage: Usage) -> Used:
    tokens = usage.prompt_tokens + usage.completion_tokens
    return Used(tokens, reservation.prices.cost(usage), model_calls=1)
