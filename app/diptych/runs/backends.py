"""Everything that a run can reach, in one value."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from diptych.budgets.agent_budgets import AgentBudgets
from diptych.budgets.run_meter import RunMeter
from diptych.core.run_settings import RunSettings
from diptych.policy.rules import Policy
from diptych.ports import Agents, Model, RunTrace, Tools, Tracing
from diptych.runs.hooks import Hooks


class StepGate:
    """Lets the Python API take runs one step at a time (`library.control`); other runs pass."""

    def __init__(self) -> None:
        self._held: dict[str, _Turnstile] = {}
        self._starting: set[asyncio.Future[None]] = set()  # for runs whose ids are not known yet

    @contextmanager
    def holding(self) -> Iterator[set[str]]:
        """Hold the runs whose ids the block adds to the set; until it ends, all others wait."""
        starting, held = asyncio.get_running_loop().create_future(), set[str]()
        self._starting.add(starting)
        try:
            yield held
        finally:
            self._starting.discard(starting)
            starting.set_result(None)
            for run_id in held:
                self._held.setdefault(run_id, _Turnstile())

    def holds(self, run_id: str) -> bool:
        """Whether a run is held."""
        return run_id in self._held

    def free(self, run_id: str) -> None:
        """Let a run continue without waiting."""
        if turnstile := self._held.pop(run_id, None):
            turnstile.go.set()

    async def pass_through(self, run_id: str) -> None:
        """Wait for a run's next step. If cancelled, the run is no longer held."""
        if self._starting and run_id not in self._held:
            await asyncio.wait(tuple(self._starting))
        if turnstile := self._held.get(run_id):
            turnstile.waits.set()
            try:
                await turnstile.go.wait()
            except asyncio.CancelledError:
                self.free(run_id)
                raise
            turnstile.go.clear()

    async def step(self, run_id: str) -> None:
        """Let a run continue to its next request, and wait until it is there.

        A run that is not held ignores this. Cancel this if the run ends first.
        """
        if turnstile := self._held.get(run_id):
            await turnstile.waits.wait()
            turnstile.waits.clear()
            turnstile.go.set()
            await turnstile.waits.wait()


class _Turnstile:
    def __init__(self) -> None:
        self.waits, self.go = asyncio.Event(), asyncio.Event()


@dataclass(slots=True)
class ModelHabits:
    """What replies have shown about a model, for all runs.

    `opens_reasoning`: the chat template opens the reasoning, so replies begin inside it.
    """

    opens_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model of new runs, and the settings that come with it."""

    model: Model
    settings: RunSettings
    habits: ModelHabits = field(default_factory=ModelHabits)


@dataclass(frozen=True, slots=True)
class Backends:
    """The model, tools and agents that a run can reach.

    `newest_model` returns the model of runs that begin or are taken over now, in place of `model`,
    and the settings of those that begin, in place of the definition's.

    `budgets` and `tracing` belong to the agent, and make each run's `meter` and `trace`. With
    `tells_turns` subscribers get a notice before each request to the model.
    """

    model: Model
    tools: Tools
    agents: Agents
    habits: ModelHabits = field(default_factory=ModelHabits)
    policy: Policy = field(default_factory=Policy)
    hooks: Hooks = field(default_factory=Hooks)
    step_gate: StepGate = field(default_factory=StepGate)
    budgets: AgentBudgets | None = None
    meter: RunMeter = field(default_factory=RunMeter)
    tracing: Tracing | None = None
    trace: RunTrace | None = None
    tells_turns: bool = False
    newest_model: Callable[[], RunModel] | None = None
