"""Makes the budgets of an agent of what its manifest says of them."""

from typing import Any

from diptych.core.budget import Budget, Prices, SharedBudgets
from diptych.manifest.budget import BudgetSpec, SharedBudgetSpec
from diptych.manifest.model import ModelSpec


def budget_fields(spec: BudgetSpec, model: ModelSpec | None) -> dict[str, Any]:
    """Give the budget of one run, and the prices, as `RunSettings` has them.

    Its wall clock is a deadline (`run_deadline`).
    """
    budget = Budget(spec.tokens, spec.cost, spec.model_calls, spec.tool_calls, spec.steps)
    given = model and model.prices
    return {"budget": budget, "prices": Prices(given.input, given.output) if given else None}


def run_deadline(deadline: float, spec: BudgetSpec) -> float:
    """Give the seconds that a run may take."""
    return deadline if spec.wall_clock is None else min(deadline, spec.wall_clock)


def shared_budgets(spec: BudgetSpec) -> SharedBudgets:
    """Give the budgets that runs share."""
    return SharedBudgets(_shared(spec.per_session), _shared(spec.per_day))


def _shared(spec: SharedBudgetSpec) -> Budget:
    ms = None if spec.wall_clock is None else round(spec.wall_clock * 1000)
    return Budget(spec.tokens, spec.cost, spec.model_calls, spec.tool_calls, spec.steps, ms)
