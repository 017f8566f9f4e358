"""The meter of one run, which counts its calls, and the notices about its budget."""

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
"""The notice before a run's end: the use of its budget."""
STEPS = ("actions", "either")
"""The purposes of requests that are steps of phase 1."""


class BudgetRefused(Exception):
    """A call may not be made; `end` is the end of its run, if that call was to the model."""

    def __init__(self, end: Failed) -> None:
        super().__init__(end.message)
        self.end = end


@dataclass(slots=True)
class ModelCall:
    """One request to a model, while it is counted; without `usage` it counts for nothing.

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
        """Our estimate of its prompt, made when it is first needed."""
        if self._weight is None:
            weight = self.command.weight
            self._weight = request_weight(self.command.request) if weight is None else weight
        return self._weight

    def with_usage(self, replied: Replied, written: str = "") -> Replied:
        """Return a reply with its usage, estimated if the endpoint does not report it.

        `written` is all its text, including text that subscribers have already.
        """
        is_written = written or replied.calls or replied.finish_reason == MALFORMED_CALL
        if is_written and not replied.usage.is_known:
            tokens = weight(written + "".join(call.arguments for call in replied.calls))
            replied = replace(replied, usage=Usage(self.request_tokens, tokens))
        self.usage = replied.usage
        return replied


class RunMeter:
    """Counts nothing: the reducer counts a run's own budget (`core.spending`).

    `SharedBudgetMeter` takes its place where budgets are shared. `shares` has the budgets of
    admitted delegations, by call id.
    """

    def __init__(self) -> None:
        self.shares: dict[str, Budget] = {}

    async def begin(self, command: AskModel) -> ModelCall:
        """Begin to count a request to the model; `end` takes the result. Raises `BudgetRefused`."""
        return ModelCall(command)

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        """Count what a request has used; `error` is what broke it off."""

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        """Count calls, and return those that may be made; `refuse` takes the results of others."""
        del refuse
        self.shares = shares(run, commands) if run.budget else {}
        return commands

    def take_up(self, call: Delegation) -> None:
        """Count a former owner's delegation, in a run that ends now."""

    def end_child(self, result: Result, used: Used) -> None:
        """Count what a delegation has used."""

    async def close(self, *, has_ended: bool) -> None:
        """End the counting: the run has ended, or another process goes on with it."""


def budget_notices(before: Run, after: Run) -> list[Notice]:
    """Return a notice for each limit of a run that has just reached 80 %, and one at its end."""
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
    """Return the warning about one limit; `scope` is as in `limit_place`."""
    about: dict[str, JSON] = {
        "used": encode_budget(used)[name],
        "limit": encode_budget(budget)[name],
    }
    return Notice(BUDGET_WARNING, {"budget": limit_place(name, scope), **about})
