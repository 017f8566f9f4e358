"""The notices about budgets: for whoever watches a run, live and not on record."""

from diptych.core.budget import Budget, Limit, decimal_text, encode_budget
from diptych.core.messages import JSON, Used
from diptych.core.spending import limit_place, used_by, warnings
from diptych.core.state import Phase, Run
from diptych.ports import Notice

BUDGET_WARNING = "budget_warning"
BUDGET = "budget"
"""The notice before a run's end: what it has used of its budget."""


def budget_notices(before: Run, after: Run) -> list[Notice]:
    """Give a notice for each limit of a run of which 80 % were not used before, and are now.

    And the one before its end.
    """
    if not after.budget.limits:
        return []
    found = budget_summary(after) if after.phase is Phase.DONE else []
    if names := warnings(before, after):
        used = used_by(after)
        return [*(budget_warning(name, used, after.budget) for name in names), *found]
    return found


def budget_summary(run: Run) -> list[Notice]:
    """Give the notice of what a run has used, if it has limits."""
    if not run.budget.limits:
        return []
    used, limits = used_by(run), run.budget.encoded
    shown: dict[str, JSON] = {name: getattr(used, name) for name in limits}
    if "cost" in shown:
        shown["cost"] = decimal_text(used.cost)
    return [Notice(BUDGET, {"used": shown, "limits": limits})]


def budget_warning(name: Limit, used: Used, budget: Budget, scope: str = "") -> Notice:
    """Give the notice about one limit; `scope` is as in `limit_place`."""
    about: dict[str, JSON] = {
        "used": encode_budget(used)[name],
        "limit": encode_budget(budget)[name],
    }
    return Notice(BUDGET_WARNING, {"budget": limit_place(name, scope), **about})
