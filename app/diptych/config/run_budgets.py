"""Makes the budgets of an agent of what its manifest says of them.

Not here: the manifest's form (`manifest.budget`), what is counted (`loop.spending`).
"""

from diptych.config.manifest.budget import BudgetSpec, SharedBudgetSpec
from diptych.config.manifest.model import ModelSpec
from diptych.loop.budget import Budget, Prices, SharedBudgets


def run_budget(spec: BudgetSpec) -> Budget:
    """Give the budget of one run; its wall clock is a deadline (`run_deadline`)."""
    return Budget(spec.tokens, spec.cost, spec.model_calls, spec.tool_calls, spec.steps)


def run_deadline(deadline: float, spec: BudgetSpec) -> float:
    """Give the seconds that a run may take."""
    return deadline if spec.wall_clock is None else min(deadline, spec.wall_clock)


def shared_budgets(spec: BudgetSpec) -> SharedBudgets:
    """Give the budgets that runs share."""
    return SharedBudgets(_shared(spec.per_session), _shared(spec.per_day))


def prices(model: ModelSpec | None) -> Prices | None:
    """Give what the model costs, if the manifest says so."""
    given = model and model.prices
    return Prices(given.input, given.output) if given else None


def _shared(spec: SharedBudgetSpec) -> Budget:
    ms = None if spec.wall_clock is None else round(spec.wall_clock * 1000)
    return Budget(spec.tokens, spec.cost, spec.model_calls, spec.tool_calls, spec.steps, ms)
