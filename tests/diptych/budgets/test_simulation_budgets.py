"""Seeded simulation: budgets where owners die, freeze and hand over, and calls of the store fail.

The world is that of `test_simulation_owners`; each seed gives its runs budgets besides, of their
own and of the day. Whatever happens, all promises of runs hold, no run goes over by more than one
call, and the ledger has all that is on record. `support.seeds` says how many seeds are tried.
"""

import random
from dataclasses import replace

import pytest
from support.seeds import blocks, quiet
from support.virtual_time import run_virtually
from support.world import World, now

from diptych.budgets.agent_budgets import AgentBudgets, BudgetTerms
from diptych.budgets.recorded_use import RecordedUse, recorded_use
from diptych.core.budget import LIMITS, Budget, SharedBudgets
from diptych.core.messages import Used
from diptych.core.run_settings import RunSettings
from diptych.ports.budgets import Reserved
from diptych.runs.service import RunService
from diptych.stores.memory.budgets import MemoryLedger

pytestmark = pytest.mark.no_cover

SEEDS = 100


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    with quiet():
        yield


class BudgetedWorld(World):
    """A world whose runs have budgets; `ledger` is the one of all processes."""

    def __init__(self, seed, ledger=MemoryLedger):
        super().__init__(seed)
        chance = random.Random(f"{seed}, budgets")
        self.runs = self._service
        self.ledger = ledger(now)
        self.of_run = Budget(
            tokens=chance.choice([None, 300, 1_000]),
            model_calls=chance.choice([None, 1, 3]),
            tool_calls=chance.choice([None, 1, 2]),
        )
        self.of_day = Budget(
            tokens=chance.choice([None, 2_000]),
            model_calls=chance.choice([None, 12]),
            tool_calls=chance.choice([1, 6]),
        )

    def _service(self, definition, backends, stores, *rest):
        settings = replace(definition.settings, budget=self.of_run)
        terms = BudgetTerms(RunSettings(), SharedBudgets(per_day=self.of_day))
        budgets = AgentBudgets(terms, self.ledger, stores.clock)
        self.budgets = budgets
        backends = replace(backends, budgets=budgets)
        return RunService(replace(definition, settings=settings), backends, stores, *rest)

    async def live(self):
        wrong = await super().live()
        recorded = Used()
        for run_id, run in self.store.runs.items():
            recorded += recorded_use(run.records)
            wrong += [f"{run_id}: {what}" for what in self._beyond(run.records)]
        used = (await self.budgets.used("-"))["perDay"][1]
        wrong += [
            f"the ledger has {getattr(used, name)} {name} of {getattr(recorded, name)}"
            for name in LIMITS
            if name not in ("steps", "wall_clock") and getattr(used, name) < getattr(recorded, name)
        ]
        if used.tool_calls > (self.of_day.tool_calls or 0):
            wrong.append(f"{used.tool_calls} tool calls on a day that has {self.of_day.tool_calls}")
        return wrong

    def _beyond(self, records):
        """Say where a run has used something after nothing was left."""
        use = RecordedUse()
        for record in records:
            gone = self.of_run.gone(use.used, "tokens", "model_calls")
            if gone and record.event_type == "model_reply":
                yield f"the model was asked without {gone}"
            if record.event_type == "tool_call" and self.of_run.gone(use.used, "tool_calls"):
                yield "a tool was called without a call left"
            use.add(record)


def found(seed, **breaks):
    async def live():
        return await BudgetedWorld(seed, **breaks).live()

    return run_virtually(live())


@pytest.mark.parametrize("seeds", blocks(SEEDS), ids=str)
def test_whatever_breaks_no_budget_does(seeds):
    wrong = {seed: found(seed) for seed in seeds}
    assert {seed: what for seed, what in wrong.items() if what} == {}


class Generous(MemoryLedger):
    """Lets everything be reserved."""

    async def reserve(self, accounts, entry, amount):
        free = [account._replace(budget=Budget()) for account in accounts]
        return await super().reserve(free, entry, amount)

    async def spend(self, accounts, entry, run_id, used):
        await self.settle(accounts, entry, run_id, used)
        return Reserved("ok", await self.used(accounts))


class Lossy(MemoryLedger):
    """Settles nothing."""

    async def settle(self, accounts, entry, run_id, used):
        return await super().settle(accounts, entry, run_id, Used())


@pytest.mark.parametrize(("broken", "seeds"), [(Generous, 10), (Lossy, 5)])
def test_a_ledger_that_breaks_its_promise_is_found(broken, seeds):
    assert any(found(seed, ledger=broken) for seed in range(seeds))
