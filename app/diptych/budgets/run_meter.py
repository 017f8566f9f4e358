"""The meter of one run: asked before the run calls anything, and told what that has used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diptych.core.budget import Budget
from diptych.core.commands import AskModel, MakeCall
from diptych.core.events import Failed, Replied, Returned
from diptych.core.messages import Delegation, Result, Usage, Used
from diptych.core.model_request import request_weight
from diptych.core.reading import MALFORMED_CALL
from diptych.core.spending import shares
from diptych.core.state import Run
from diptych.core.tokens import weight
from diptych.ports.budgets import Account

STEPS = ("actions", "either")
"""The purposes of requests that are steps of phase 1."""


class BudgetRefused(Exception):
    """A call may not be made; `end` is what its run ends with."""

    def __init__(self, end: Failed) -> None:
        super().__init__(end.message)
        self.end = end


@dataclass(slots=True)
class ModelCall:
    """One request to a model, while it is counted; `usage` is what counts of it, None if nothing.

    Of shared budgets, `entry` reserves of `accounts` what it may use.
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
        """Our estimate of its prompt: most replies say it, and few callers need it."""
        if self._weight is None:
            weight = self.command.weight
            self._weight = request_weight(self.command.request) if weight is None else weight
        return self._weight

    def with_usage(self, replied: Replied, written: str = "") -> Replied:
        """Give a reply with its usage: an estimate, where the endpoint does not say it.

        `written` is all text that came with it, also what has been told by now.
        """
        is_written = written or replied.calls or replied.finish_reason == MALFORMED_CALL
        if is_written and not replied.usage.is_known:
            tokens = weight(written + "".join(call.arguments for call in replied.calls))
            replied = replace(replied, usage=Usage(self.request_tokens, tokens))
        self.usage = replied.usage
        return replied


class RunMeter:
    """The meter of a run, which counts nothing by itself: the loop does (`loop.spending`).

    `AgentBudgets.of_run` says which one a run gets: this one, `EstimatingMeter` if the tokens or
    the money of the run are limited, or `SharedBudgetMeter` where it shares a budget with others.
    `shares` is what delegations that are admitted are given of the budget, by their ids.
    """

    def __init__(self) -> None:
        self.shares: dict[str, Budget] = {}

    async def begin(self, command: AskModel) -> ModelCall | None:
        """Begin to count a request to the model, if that is to be counted by itself.

        What it gives is given to `end` when there is a reply, or none. Raises `BudgetRefused`.
        """
        del command
        return None

    async def end(self, call: ModelCall, error: BaseException | None) -> None:
        """Count what a request has used; `error` is what ended it, if something did."""

    async def admit(
        self, commands: Sequence[MakeCall], run: Run, refuse: Callable[[Returned], None]
    ) -> Sequence[MakeCall]:
        """Count calls that are about to be made; gives those that may be."""
        del refuse
        self.shares = shares(run, commands) if run.budget else {}
        return commands

    def take_up(self, call: Delegation) -> None:
        """Count a delegation that a former owner has sent, in a run that ends now."""

    def end_child(self, result: Result, used: Used) -> None:
        """Count what a call has used, if it was a delegation."""

    async def close(self, *, has_ended: bool) -> None:
        """End the counting: the run has ended, or another process goes on with it."""


class EstimatingMeter(RunMeter):
    """For a run that shares no budget: estimates the usage of replies that do not say theirs."""

    async def begin(self, command: AskModel) -> ModelCall | None:
        return ModelCall(command)
