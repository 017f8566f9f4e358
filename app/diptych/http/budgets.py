"""Budgets in JSON: in run requests and in `GET /v1/runs/{id}`."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pydantic import ConfigDict, Field

from diptych.budgets.agent_budgets import AgentBudgets
from diptych.budgets.recorded_use import recorded_budget, recorded_use
from diptych.core.budget import MAX_COUNT, Budget, encode_budget
from diptych.core.codec import Record
from diptych.core.errors import InvalidRequest, StoreError
from diptych.core.messages import Used
from diptych.http.bodies import Body

_SCOPES = {"perSession": "session", "perDay": "day"}


class BudgetBody(Body):
    """A run's limits, each at most the manifest's `budget`; null counts as absent."""

    model_config = ConfigDict(extra="forbid")

    tokens: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="Tokens, with those of children."
    )
    cost: str | None = Field(
        None,
        pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?$",
        description='Money, as a string such as "0.50". The manifest must have `model.prices`.',
    )
    model_calls: int | None = Field(None, ge=1, le=MAX_COUNT, description="Requests to the model.")
    tool_calls: int | None = Field(None, ge=1, le=MAX_COUNT, description="Calls of tools.")
    steps: int | None = Field(None, ge=1, le=MAX_COUNT, description="Steps, of all turns.")


def read_budget(body: BudgetBody | None, budgets: AgentBudgets | None) -> Budget:
    """Read a request's budget. Raises `InvalidRequest` above the manifest's limits."""
    if body is None:
        return Budget()
    cost = None if body.cost is None else Decimal(body.cost)
    asked = Budget(body.tokens, cost, body.model_calls, body.tool_calls, body.steps)
    if cost is not None and not cost:
        raise InvalidRequest(
            "budget.cost must be more than 0", param="budget.cost", code="invalid_value"
        )
    settings = budgets.settings if budgets else None
    if cost is not None and not (settings and settings.prices):
        raise InvalidRequest(
            "budget.cost: this agent does not know what its model costs; leave it out, or give "
            "model.prices in its manifest",
            param="budget.cost",
            code="invalid_value",
        )
    for name, limit in settings.budget.limits if settings else ():
        value = getattr(asked, name)
        if value is not None and value > limit:
            most = encode_budget(settings.budget)[name] if settings else limit
            raise InvalidRequest(
                f"budget.{name}: this agent's runs have at most {most}",
                param=f"budget.{name}",
                code="invalid_value",
            )
    return asked


async def budget_view(
    records: Sequence[Record], session_id: str, budgets: AgentBudgets | None
) -> dict[str, Any]:
    """Return used and remaining amounts of a run's own and shared budgets.

    `session_id` is the stored id.
    """
    if budgets is None or not records:
        return {}
    view: dict[str, Any] = {}
    if budget := recorded_budget(records):
        view["run"] = _view(budget, recorded_use(records))
    try:
        shared = await budgets.used(session_id)
    except StoreError:
        shared = {}
    view |= {_SCOPES[scope]: _view(*found) for scope, found in shared.items()}
    return {"budget": view} if view else {}


def _view(budget: Budget, used: Used) -> dict[str, Any]:
    shown = encode_budget(used)
    return {
        "used": {name: shown[name] for name, _ in budget.limits},
        "limits": encode_budget(budget),
        "left": encode_budget(budget.left(used)),
    }
