"""The budgets of an agent in one process: its runs' meters, and their use."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diptych.budgets.run_meter import RunMeter
from diptych.budgets.shared_budget_meter import (
    AgentLedger,
    CountedLog,
    Estimate,
    SharedBudgetMeter,
)
from diptych.core.budget import Budget, Prices, SharedBudgets
from diptych.core.messages import Used
from diptych.core.run_settings import RunSettings
from diptych.ports import Clock
from diptych.ports.budgets import Account, Ledger


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """What a manifest says about budgets, for all runs.

    `settings` has the budget of one run and the prices; `reply_tokens` bounds a reply, if anything
    does. A session's account is kept for `session_seconds` after its last use.
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
        estimate = Estimate(terms.settings.prices or Prices(), terms.reply_tokens)
        name = clock.token()[-12:]
        self._ledger = AgentLedger(ledger, terms.shared, estimate, terms.session_seconds, name)

    @property
    def settings(self) -> RunSettings:
        """The settings of each run: its budget, and the prices."""
        return self._terms.settings

    @property
    def of_day(self) -> tuple[Account, Used] | None:
        """The use of the day's account, as last seen here; None before the first call."""
        return self._ledger.of_day

    def of_run(self, log: CountedLog) -> RunMeter:
        """Return the meter of a run; beyond its request, `log` has what a former owner did."""
        if not self._terms.shared:
            return RunMeter()
        return SharedBudgetMeter(self._ledger, self._clock, log, self._terms.settings.prices)

    async def used(self, session_id: str) -> Mapping[str, tuple[Budget, Used]]:
        """Return the use of a session's shared budgets, by scope.

        Raises `StoreError`.
        """
        accounts = self._ledger.accounts(session_id, self._clock.now())
        sums = await self._ledger.store.used(accounts) if accounts else ()
        return {a.scope: (a.budget, used) for a, used in zip(accounts, sums, strict=True)}

    async def aclose(self) -> None:
        """Cancel open settlements; a run's next owner counts its log."""
        await self._ledger.aclose()
