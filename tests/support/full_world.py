"""One seed of the simulation of everything: the world of owners (`world`), and all that runs have.

Budgets of runs, sessions and the day in a ledger whose calls get lost; hooks that deny, rewrite,
replace, end, find fault, crash and hang; queues in both modes, busy sessions in all three; a tool
that is called again and again; an agent below whose processes die (`world_below`), with calls of
its own that wait. Messages, decisions and cancellations come at any call of the store.
"""

import asyncio
import contextvars
import random
from dataclasses import replace

from support.doubles import FunctionTools, tool
from support.replicas import Killed
from support.world import World
from support.world_below import NAME, Below, Workers
from support.world_reckoning import is_denied, is_rewritten, wrong_in_all

from diptych.budgets.agent_budgets import SECONDS_OF_A_DAY, AgentBudgets, BudgetTerms
from diptych.core.budget import Budget, SharedBudgets
from diptych.core.errors import Overloaded, RunEnded, StoreError
from diptych.core.events import MessageQueued
from diptych.policy.rules import Rule
from diptych.ports.budgets import RESERVED_SECONDS
from diptych.runs.approvals import DecisionRequest
from diptych.runs.hooks import Hook, Hooks
from diptych.stores.memory.budgets import MemoryLedger

HOOK_SECONDS = 2.0
POINTS = ("beforeCall", "afterCall", "afterStep", "validateAnswer")


class ReplicaLedger:
    """How one process reaches the ledger of all: as it reaches the store."""

    def __init__(self, replica, ledger):
        self.replica, self.ledger = replica, ledger

    def __getattr__(self, name):
        method = getattr(self.ledger, name)

        async def call(*args):
            return await self.replica._call(name, lambda: _at_once(method(*args)))

        return call


def _at_once(work):
    """Give what a coroutine gives that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def _begin_before_midnight(chance):
    """Let a quarter of the seeds last beyond the end of a day, whose budget ends with it."""
    if chance.random() < 0.25:
        asyncio.get_running_loop()._now = SECONDS_OF_A_DAY - chance.uniform(1.0, 25.0)


class FullWorld(World):
    """A world with everything in it; `below` is that of the agent below."""

    def __init__(self, seed, ledger=MemoryLedger, workers=Workers, *, midnights=True, **rest):
        if midnights:
            _begin_before_midnight(random.Random(f"{seed}, midnight"))
        super().__init__(seed, **rest)
        self.whole = random.Random(f"{seed}, whole")
        chance = self.whole
        self.below = Below(seed + 1_000_000, native=self.is_native)
        self.below.asks = self.asks
        self.workers = workers
        self.ledger = ledger(self.loop.time)
        self.of_run = Budget(
            tokens=chance.choice([None, None, 2_000]),
            model_calls=chance.choice([None, None, 4]),
            tool_calls=chance.choice([None, None, 2]),
        )
        self.of_session = Budget(
            model_calls=chance.choice([None, None, 7]), tool_calls=chance.choice([None, None, 4])
        )
        self.of_day = Budget(
            tokens=chance.choice([None, None, 9_000]),
            model_calls=chance.choice([None, None, 12]),
            tool_calls=chance.choice([None, 6]),
        )
        self.queue_mode = chance.choice(["one", "all"])
        self.is_obsessed = False
        self.repeat = chance.choice([None, None, "allow", "deny"])
        self.max_steps = chance.choice([3, 3, 5])
        self.points = [point for point in POINTS if chance.random() < 0.3]
        self.asks_worker = chance.random() < 0.3  # before it is given a task
        self.passed_answers: set[tuple[str, str]] = set()  # run and answer, that a hook let pass
        if random.Random(f"{seed}, obsession").random() < 0.2:
            self.is_obsessed, self.repeat, self.max_steps, self.silence = True, None, 5, 0.0
        self.held: list[str] = []  # reservations that stayed
        self.sudden: list[asyncio.Task] = []
        self.outside = contextvars.copy_context()  # of all processes
        self.ids = iter(range(10_000))

    # The agent

    def definition(self):
        definition = super().definition()
        settings = replace(
            definition.settings,
            max_steps=self.max_steps,
            queue_mode=self.queue_mode,
            budget=self.of_run,
            hooks=tuple(self.points),
        )
        return replace(definition, settings=settings)

    def backends(self, replica):
        settings = self.definition().settings
        shared = SharedBudgets(per_session=self.of_session, per_day=self.of_day)
        terms = BudgetTerms(settings, shared)
        return replace(
            super().backends(replica),
            agents=self.workers(self.below, replica),
            hooks=self.hooks(replica),
            budgets=AgentBudgets(terms, ReplicaLedger(replica, self.ledger), self.store),
        )

    def rules(self):
        rules = super().rules()
        if self.expires is not None and self.asks_worker:
            rules.append(Rule("agent", NAME, "ask", expires=self.expires))
        if self.repeat is not None:
            rules.append(Rule("tool", "poke", "allow", repeat=self.repeat))
        return rules

    def calls(self, chance, key):
        if self.is_obsessed:
            return [{"tool": "poke", "arguments": {"key": "poke"}}]
        calls = super().calls(chance, key)
        for n, _ in enumerate(calls):
            kind = chance.random()
            if kind < 0.2:
                calls[n] = {"agent": NAME, "task": f"Q below {key}/{n}"}
            elif kind < 0.35:
                calls[n] = {"tool": "poke", "arguments": {"key": "poke"}}
        return calls

    def functions(self, replica):
        made = super().functions(replica)

        async def poke(key):
            await replica.passed()
            self.store.note("tool", "tool_started", key=key, repeatable=True)
            await asyncio.sleep(0.1)
            return "poked"

        tools = (*made.tools, tool("poke"))
        return FunctionTools({**made.functions, "poke": poke}, tools, asking=made.asking)

    # Its hooks, at `points`

    def hooks(self, replica):
        asks = {
            "beforeCall": self.before_call,
            "afterCall": self.after_call,
            "afterStep": self.after_step,
            "validateAnswer": self.validate_answer,
        }

        def hook(point):
            async def ask(question):
                await replica.passed()
                luck = self.whole.random()
                if luck < 0.02:
                    raise ValueError("crashed")
                await asyncio.sleep(2 * HOOK_SECONDS if luck < 0.03 else luck)
                return asks[point](question)

            return Hook(point, point, ask, HOOK_SECONDS)

        return Hooks(tuple(map(hook, self.points)))

    def before_call(self, question):
        call = question["call"]
        if "tool" not in call or call["tool"] == "poke":
            return None
        key = call["arguments"]["key"]
        if is_denied(key):
            return {"deny": "not this one"}
        return {"arguments": {"key": f"{key}~"}} if is_rewritten(key) else None

    def after_call(self, question):
        result = question["result"]
        return None if "error" in result else {"result": {"text": f"seen {result['text']}"}}

    def after_step(self, question):
        return {"end": self.whole.random() < 0.1}

    def validate_answer(self, question):
        if self.whole.random() < 0.3:
            return {"problem": "not good enough"}
        self.passed_answers.add((question["run_id"], question["answer"]))
        return None

    # What comes from outside

    def manner(self):
        return {"when_busy": self.whole.choice([None, None, "enqueue", "reject", "interrupt"])}

    def decision_on(self, call):
        if "agent" in call:
            if self.people.random() < 0.5:
                return DecisionRequest("edit", arguments={"task": f"{call['task']} please"})
            return DecisionRequest(self.people.choice(["approve", "reject"]))
        return super().decision_on(call)

    def befalls(self, call):
        if self.is_troubled and self.runs_begun and not call.replica.is_dead:
            luck = self.whole.random()
            if luck < 0.004:
                self.suddenly(self.send_message())
            elif luck < 0.0045:
                self.suddenly(self.cancel_one())
        return super().befalls(call)

    def suddenly(self, work):
        """Have somebody outside do something now, while a process calls the store."""
        self.sudden.append(self.loop.create_task(work, context=self.outside))

    async def send_message(self):
        """Send a message now, maybe twice, at whatever process."""
        run_id, name = self.whole.choice(self.runs_begun), f"now{next(self.ids)}"
        message = MessageQueued(f"more {name}", name, is_follow_up=self.whole.random() < 0.4)
        for _ in range(self.whole.choice([1, 1, 2])):
            replica = self.one()
            try:
                async with asyncio.timeout(20):
                    await replica.run(replica.runs.send_message(run_id, message))
            except (Killed, StoreError, TimeoutError, RunEnded, Overloaded):
                continue
            if (run_id, name) not in self.steered:
                self.steered.append((run_id, name))

    async def cancel_one(self):
        replica = self.one()
        try:
            async with asyncio.timeout(20):
                await replica.run(replica.runs.cancel(self.whole.choice(self.runs_begun)))
        except (Killed, StoreError, TimeoutError):
            pass

    # The whole

    def begin(self):
        super().begin()
        self.below.begin()

    def others_at_work(self):
        yield from super().others_at_work()
        yield self.below.make_trouble()
        if self.below.expires is not None:
            yield self.below.decider()

    async def live(self):
        wrong = await super().live()
        sudden = [task.exception() for task in self.sudden if task.done() and task.exception()]
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.sleep(1)
        left = [repr(task.get_coro()) for task in left if not task.done()]
        return [
            *wrong,
            *(f"a message broke: {error!r}" for error in sudden),
            *(f"{what} is left over" for what in left),
            *wrong_in_all(self),
        ]

    async def come_to_rest(self):
        """Wait until nothing is held for those that are dead, and nothing may be held at all."""
        await super().come_to_rest()
        await asyncio.sleep(RESERVED_SECONDS + 1)
        self.held = [
            f"{key} still holds {list(row.reserved)}"
            for key, row in self.ledger._accounts.items()
            if any(until >= self.loop.time() for until, _ in row.reserved.values())
        ]

    def end(self):
        return [*super().end(), *self.below.end()]


class AskingFullWorld(FullWorld):
    """A world with everything, whose tools ask people, here and below."""

    asks = 0.3
