"""What a run can reach, as one value."""

from dataclasses import dataclass, field

from diptych.budgets.agent_budgets import AgentBudgets
from diptych.budgets.run_meter import RunMeter
from diptych.policy.rules import Policy
from diptych.ports import Agents, Model, Tools
from diptych.ports.tracing import RunTrace, Tracing
from diptych.runs.hooks import Hooks
from diptych.runs.step_gate import StepGate


@dataclass(slots=True)
class ModelHabits:
    """What replies have shown of a model; for all runs, as each run asks it only a few times.

    `opens_reasoning`: its template does, so that replies begin inside of it.
    """

    opens_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Backends:
    """What a run can reach: the model, the tools and the other agents.

    `habits` is what all runs have learned of the model. `policy` says which calls are made, `hooks`
    are asked about them. `step_gate` holds the runs that are taken step by step. Of a run, `meter`
    counts what it uses, and `trace` is told what is on no record; of an agent, `budgets` and
    `tracing` give each run these. Without `tracing` nobody wants traces.
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
