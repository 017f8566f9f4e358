"""The budgets of an agent in one process: gives each run its meter, and says what is used."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diptych.budgets.agent_ledger import AgentLedger
from diptych.budgets.estimate import Estimate
from diptych.budgets.run_ledger import CountedLog, CountedRun, RunLedger
from diptych.budgets.run_meter import EstimatingMeter, RunMeter
from diptych.budgets.shared_budget_meter import SharedBudgetMeter
from diptych.core.budget import Budget, Prices, SharedBudgets
from diptych.core.messages import Used
from diptych.core.run_settings import RunSettings
from diptych.ports import Clock
from diptych.ports.budgets import Account, Ledger


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """What the manifest says of budgets, for all runs.

    `settings` has the budget of one run and the prices. A reply has at most `reply_tokens`, None if
    nothing bounds it. Sessions are kept for `session_seconds` after they were used last.
    """

    settings: RunSettings = field(default_factory=RunSettings)
    shared: SharedBudgets = field(default_factory=SharedBudgets)
    reply_tokens: int | None = None
    session_seconds: float = 24 * 3600.0


class AgentBudgets:
    """Counts all runs of an agent that this process executes."""

    def __init__(self, terms: BudgetTerms, ledger: Ledger, clock: Clock) -> None:
        self._terms = terms
        self._clock = clock
        prices, name = terms.settings.prices or Prices(), clock.token()[-12:]
        estimate = Estimate(prices, terms.reply_tokens)
        self._agent_ledger = AgentLedger(
            ledger, terms.shared, estimate, terms.session_seconds, name
        )

    @property
    def settings(self) -> RunSettings:
        """The settings of each run: its budget, and the prices."""
        return self._terms.settings

    @property
    def of_day(self) -> tuple[Account, Used] | None:
        """What is used of the day's account, as this process knows it; None before the first."""
        return self._agent_ledger.of_day

    def of_run(self, log: CountedLog, asked: Budget) -> RunMeter:
        """Give what counts a run from now on; its request has `asked` for so much.

        What is on its `log` now, beside its request, is of another owner.
        """
        settings = self._terms.settings
        if not self._terms.shared:
            budget = settings.budget.tightened(asked)
            is_limited = budget.tokens is not None or budget.cost is not None
            return EstimatingMeter() if is_limited else RunMeter()
        counted = CountedRun(self._clock, log, settings.prices)
        return SharedBudgetMeter(RunLedger(self._agent_ledger, counted), self._agent_ledger)

    async def used(self, session_id: str) -> Mapping[str, tuple[Budget, Used]]:
        """Say what is used of the budgets that runs of a session share, by their scope.

        Raises `StoreError`.
        """
        accounts = self._agent_ledger.accounts(session_id, self._clock.now())
        sums = await self._agent_ledger.store.used(accounts) if accounts else ()
        return {a.scope: (a.budget, used) for a, used in zip(accounts, sums, strict=True)}

    async def aclose(self) -> None:
        """Give up what is not settled; whoever goes on with a run counts its record."""
        await self._agent_ledger.aclose()
