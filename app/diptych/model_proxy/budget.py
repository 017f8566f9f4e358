"""The daily budget of a ModelAPI, counted in Redis over all replicas of its proxy.

Before a request, an upper estimate is reserved; afterwards the usage that the reply reports is
settled in its place. A stream that reports none is charged by an estimate: the prompt's weight, and
a token for each event.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from diptych.budgets.agent_budgets import SECONDS_OF_A_DAY, AgentBudgets, BudgetTerms, until_done
from diptych.core.budget import Prices, SharedBudgets, limit_text
from diptych.core.errors import StoreError
from diptych.core.messages import NO_USE, Usage, Used
from diptych.model_proxy.config import ProxyConfig
from diptych.model_proxy.refused import Refused
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
    prices: Prices


class DayBudget:
    """Reserves and settles. Only for a ModelAPI that has a budget."""

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
        """Reserve a request for the budget of a configuration. Raises `Refused`."""
        await self.start()
        prices = config.prices_of(model)
        if config.per_day.cost is not None and prices is None:
            message = f"ModelAPI {config.name} limits cost, and has no price for {model[:200]!r}"
            raise Refused(403, "model_without_price", f"{message}; add it to its spec.prices")
        budgets = self._budgets
        budgets.shared = SharedBudgets(per_day=config.per_day)
        accounts = budgets.accounts("", self._clock.now())
        reservation = Reservation(accounts, next(budgets.new_entries), prices or Prices())
        entry, amount = reservation.entry, _amount(expected, reservation.prices)
        try:
            found = await budgets.ledger.reserve(accounts, entry, amount)
        except StoreError as error:
            message = f"the budget of ModelAPI {config.name} cannot be counted: {error}"
            raise _unavailable(503, "budget_unavailable", message, _BUSY_SECONDS) from None
        except asyncio.CancelledError:  # the reservation may exist
            self.settle(reservation, None)
            raise
        if found.outcome == "busy":
            message = f"the rest of the day's budget of ModelAPI {config.name} is reserved now"
            raise _unavailable(429, "budget_busy", message, _BUSY_SECONDS)
        if found.outcome == "gone":
            used = limit_text(found.limit, found.used[0], config.per_day)
            message = f"the day's budget of ModelAPI {config.name} is used up: {used}"
            rest = SECONDS_OF_A_DAY - int(self._clock.now()) % SECONDS_OF_A_DAY
            raise _unavailable(429, "budget_exhausted", message, rest)
        budgets.keep_renewing(accounts, entry)
        return reservation

    def settle(self, reservation: Reservation, usage: Usage | None) -> None:
        """Replace a reservation by real usage, in the background; None is no usage."""
        amount = _amount(usage, reservation.prices) if usage else NO_USE
        accounts, entry, budgets = reservation.accounts, reservation.entry, self._budgets

        async def settle() -> None:
            sums = await budgets.ledger.settle(accounts, entry, "", amount)
            budgets.stop_renewing(entry)
            for account, used in zip(accounts, sums, strict=True):
                budgets.note_use(account, used)

        task = budgets.spawn(until_done(partial(settle)))
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


def _unavailable(status: int, code: str, message: str, retry_after: int) -> Refused:
    kind = "insufficient_quota" if code == "budget_exhausted" else "server_error"
    return Refused(status, code, message, kind=kind, retry_after=retry_after)


def _amount(usage: Usage, prices: Prices) -> Used:
    tokens = usage.prompt_tokens + usage.completion_tokens
    return Used(tokens, prices.cost(usage), model_calls=1)
