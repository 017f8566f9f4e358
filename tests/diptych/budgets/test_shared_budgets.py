"""Budgets over replicas that share one Redis: exact to one call, and counted once."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.doubles import FunctionAgents, FunctionTools
from support.redis_server import RedisServer, redis_server
from support.redis_stores import soon, stores

from diptych import ports
from diptych.budgets.agent_budgets import AgentBudgets, BudgetTerms, day_key
from diptych.core.budget import Budget, SharedBudgets
from diptych.core.messages import Message, Usage, Used
from diptych.core.run_settings import RunSettings
from diptych.ports import Delta, Reply
from diptych.ports.budgets import Account
from diptych.ports.stores import Stores
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService
from diptych.serve.adapters import SystemClock
from diptych.stores.redis import RedisStore

CALL = 100  # tokens


class Model(ports.Model):
    """Takes a moment, and 100 tokens for each request; hangs after `free` of them if it must."""

    def __init__(self) -> None:
        self.asked = 0
        self.free = 0
        self.may_reply = asyncio.Event()
        self.may_reply.set()

    async def complete(self, request: Any) -> Reply:
        await self._work()
        return Reply("{}", Usage(CALL - 10, 10))

    async def stream(self, request: Any) -> AsyncIterator[Delta]:
        await self._work()
        yield Delta("Hi.")
        yield Delta(usage=Usage(CALL - 10, 10), finish_reason="stop")

    async def _work(self) -> None:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.asked > self.free:
            await self.may_reply.wait()


@dataclass
class Replica:
    store: RedisStore
    model: Model
    budgets: AgentBudgets
    runs: RunService

    async def start(self, session_id: str | None = None) -> str:
        messages = (Message("user", "hi"),)
        return (await self.runs.start(RunRequest(messages, session_id=session_id))).run_id

    async def ask(self, session_id: str | None = None) -> Any:
        run_id = await self.start(session_id)
        *_, last = [i async for batch in self.runs.subscribe(run_id) for i in batch]
        return last

    async def used(self) -> Used:
        return (await self.budgets.used("-"))["perDay"][1]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def replicas(
    url: str, count: int = 2, clock: SystemClock | None = None, **day: Any
) -> AsyncIterator[list[Replica]]:
    terms = BudgetTerms(RunSettings(), SharedBudgets(per_day=Budget(**day)), reply_tokens=20)
    prefix = f"test:{secrets.token_hex(4)}"
    async with stores(url, count, prefix=prefix, lease_seconds=1.0) as opened:
        found = [_replica(store, terms, clock or SystemClock()) for store in opened]
        for each in found:
            each.runs.start_background()
        try:
            yield found
        finally:
            for each in found:
                await each.runs.close()
                await each.budgets.aclose()


def _replica(store: RedisStore, terms: BudgetTerms, clock: SystemClock) -> Replica:
    model = Model()
    budgets = AgentBudgets(terms, store.ledger, clock)
    backends = Backends(model, FunctionTools(), FunctionAgents(), budgets=budgets)
    ports = Stores(store, store, store, store, clock)
    return Replica(store, model, budgets, RunService(AgentDefinition(), backends, ports))


async def test_200_runs_of_4_replicas_go_over_the_day_by_one_call_at_most(
    server: RedisServer,
) -> None:
    async with replicas(server.url, 4, tokens=10_000) as found:
        async with asyncio.timeout(120):
            ends = await asyncio.gather(*(found[n % 4].ask() for n in range(200)))
        total = (await found[0].used()).tokens
        assert 10_000 <= total < 10_000 + CALL
        assert sum(each.model.asked for each in found) * CALL == total
        kinds = {(end.event_type, end.metadata.get("code")) for end in ends}
        assert kinds == {("completed", None), ("failed", "budget_exhausted")}


async def test_what_a_dead_owner_has_on_record_and_did_not_settle_is_counted_once(
    server: RedisServer,
) -> None:
    async with replicas(server.url, 2, tokens=10_000) as (dead, heir):
        run_id = await _die_in_the_answer(dead)
        async with asyncio.timeout(20):
            *_, end = [i async for batch in heir.runs.subscribe(run_id) for i in batch]
        assert end.event_type == "completed"
        assert (await heir.used()).tokens == 2 * CALL
        day = Account("perDay", day_key(SystemClock().now()), Budget(tokens=10_000), 60)
        assert (await heir.store.ledger.used([day]))[0].model_calls == 2


async def test_what_a_dead_owner_did_not_settle_of_a_run_that_has_ended_is_counted_once(
    server: RedisServer,
) -> None:
    async def hang(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def lose(*_: Any) -> list[Used]:
        return []

    async with replicas(server.url, 2, tokens=10_000) as (dead, heir):
        ledger = dead.budgets.ledger
        ledger.settle = lose  # type: ignore[method-assign]
        ledger.count_record = hang  # type: ignore[method-assign] # it dies at its run's end
        assert (await dead.ask("talk")).event_type == "completed"
        assert (await heir.used()).tokens == 0
        for task in dead.runs._lease_keeper._tasks:  # no renewal, no word
            task.cancel()
        async with asyncio.timeout(20):
            while (await heir.used()).tokens != 2 * CALL:  # noqa: ASYNC110 - it is in Redis
                await asyncio.sleep(0.05)
        assert (await heir.ask("talk")).event_type == "completed"
        assert (await heir.used()).tokens == 4 * CALL


async def _die_in_the_answer(dead: Replica) -> str:
    """Let an owner die while it waits for the answer; its first call was never settled."""

    async def lose(*_: Any) -> list[Used]:
        return []

    dead.budgets.ledger.settle = lose  # type: ignore[method-assign] # it dies before
    dead.model.free = 1
    dead.model.may_reply.clear()
    run_id = await dead.start()
    await soon(lambda: dead.model.asked == 2)
    await asyncio.sleep(0.3)  # until the first reply is on record
    for task in dead.runs._lease_keeper._tasks:  # no renewal, no word
        task.cancel()
    return run_id


class MovedClock(SystemClock):
    """A clock that can be put forward."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def test_a_run_that_crosses_midnight_counts_for_the_day_on_which_it_asked(
    server: RedisServer,
) -> None:
    clock = MovedClock()
    today = clock.now()
    async with replicas(server.url, 1, clock, tokens=CALL) as [one]:
        one.model.may_reply.clear()
        run_id = await one.start()
        await soon(lambda: one.model.asked == 1)
        await asyncio.sleep(0.1)  # until it is on record that the run has begun
        clock.ahead = 24 * 3600.0
        one.model.may_reply.set()
        *_, end = [i async for batch in one.runs.subscribe(run_id) for i in batch]
        assert end.event_type == "completed"  # the first call took all of its day
        assert (await one.ask()).metadata["code"] == "budget_exhausted"
        budget = Budget(tokens=CALL)
        days = [Account("perDay", day_key(at), budget, 60) for at in (today, clock.now())]
        assert [used.tokens for used in await one.store.ledger.used(days)] == [CALL, CALL]
