"""The interface for metering a run's calls, and the notices about its budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diptych.core.budget import Budget, Limit, decimal_text, encode_budget
from diptych.core.commands import AskModel, MakeCall
from diptych.core.events import Failed, Replied, Returned
from diptych.core.messages import JSON, Delegation, Result, Usage, Used
from diptych.core.model_request import request_weight
from diptych.core.reading import MALFORMED_CALL
from diptych.core.spending import limit_place, shares, used_by, warnings
from diptych.core.state import Phase, Run
from diptych.core.tokens import weight
from diptych.ports import Notice
from diptych.ports.budgets import Account

BUDGET_WARNING = "budget_warning"
BUDGET = "budget"
"""The notice of a run's usage, sent before its end."""
STEPS = ("actions", "either")
"""The purposes of model requests that count as steps of phase 1."""


class BudgetRefused(Exception):
    """A call may not be made; for a model call, `end` is the run's failure."""

    def __init__(self, end: Failed) -> None:
        super().__init__(end.message)
        self.end = end


@dataclass(slots=True)
class ModelCall:
    """One metered model request; without `usage` it is not charged.

    With shared budgets, `entry` is its reservation in `accounts`.
    """

    command: AskModel
    usage: Usage | None = None
    accounts: Sequence[Account] = ()
    entry: str = ""
    _weight: int | None = None

    @property
    def is_step(self) -> bool:
        """Whether it is a step of phase 1."""
        return self.command.purpose in STEPS

    @property
    def request_tokens(self) -> int:
        """The estimated prompt tokens, computed when first needed."""
        if self._weight is None:
            weight = self.command.weight
            self._weight = request_weight(self.command.request) if weight is None else weight
        return self._weight

    def with_usage(self, replied: Replied, written: str = "") -> Replied:
        """Return the reply with its usage, estimated if the endpoint reports none.

        `written` is the whole text, including what was streamed already.
        """
        is_written = written or replied.calls or replied.finish_reason == MALFORMED_CALL
        if is_written and not replied.usage.is_known:
            tokens = weight(written + "".join(call.arguments for call in replied.calls))
            replied = replace(replied, usage=Usage(self.request_tokens, tokens))
        self.usage = replied.usage
        return replied


class RunMeter:
    """The meter without shared budgets; a run's own budget is counted in `core.spending`.

    `SharedBudgetMeter` is the one with shared budgets. `shares` has the budgets of allowed
    delegations, by call id.
    """

    def __init__(self) -> None:
        self.shares: dict[str, Budget] = {}

    async def begin(self, command: AskModel) -> ModelCall:
        """Start metering a model request; `end` must follow. Raises `BudgetRefused`."""
        return ModelCall(command)

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        """Charge a model request; `error` is the exception that ended it, if any."""

    async def charge_calls(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        """Charge calls and return the allowed ones; `refuse` receives the results of the others."""
        del refuse
        self.shares = shares(run, commands) if run.budget else {}
        return commands

    def take_up(self, call: Delegation) -> None:
        """Adopt a former owner's delegation, in a run that ends now."""

    def end_child(self, result: Result, used: Used) -> None:
        """Charge a delegation's usage."""

    async def close(self, *, has_ended: bool) -> None:
        """Stop metering: the run has ended, or is handed over."""


def budget_notices(before: Run, after: Run) -> list[Notice]:
    """Return a warning for each limit that has just reached 80 %, and a summary at the end."""
    if not after.budget.limits:
        return []
    found = budget_summary(after) if after.phase is Phase.DONE else []
    if names := warnings(before, after):
        used = used_by(after)
        return [*(budget_warning(name, used, after.budget) for name in names), *found]
    return found


def budget_summary(run: Run) -> list[Notice]:
    """Return the notice of a run's usage, if it has limits."""
    if not run.budget.limits:
        return []
    used, limits = used_by(run), run.budget.encoded
    shown: dict[str, JSON] = {name: getattr(used, name) for name in limits}
    if "cost" in shown:
        shown["cost"] = decimal_text(used.cost)
    return [Notice(BUDGET, {"used": shown, "limits": limits})]


def budget_warning(name: Limit, used: Used, budget: Budget, scope: str = "") -> Notice:
    """Return the warning for one limit; `scope` is as in `limit_place`."""
    about: dict[str, JSON] = {
        "used": encode_budget(used)[name],
        "limit": encode_budget(budget)[name],
    }
    return Notice(BUDGET_WARNING, {"budget": limit_place(name, scope), **about})
