"""What a run holds of shared budgets for its next calls, so that not each of them asks the ledger.

Only far from the end of all limits: there nobody waits for what others hold. All that a call may
use is reserved before it is made, as it is without credit.

Not here: when it is taken and returned (`shared_budget_meter`), what a request may use
(`estimate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add, ge, gt, sub

from diptych.loop.messages import NO_USE, Used
from diptych.ports.budgets import Account
from diptych.runtime.run_meter import ModelCall

_new = tuple.__new__
CALLS_AHEAD = 8  # requests to the model, and as many calls of tools, that are held at most
HOLDERS = {"perSession": 2, "perDay": 256}
"""How many runs may hold as much of an account before 80 % of a limit are used: what is held is not
known, nor is who settles last. A session executes one run at a time."""


@dataclass(slots=True)
class Credit:
    """A reservation for several calls, of what the ledger has `lent`.

    What they have used is not settled, and no more `left`; of that `unrecorded` is on no record, as
    its requests were cancelled. `in_flight` is the request that is under way. `is_idle` says that
    nothing was called since whoever watches has looked.
    """

    accounts: Sequence[Account]
    entry: str
    lent: Used
    left: Used
    in_flight: ModelCall | None = None
    unrecorded: Used = NO_USE
    is_idle: bool = False

    @property
    def used(self) -> Used:
        """What was used, and is not settled."""
        return self.lent - self.left

    def covers(self, accounts: Sequence[Account], expected: Used) -> bool:
        """Whether so much is reserved, beside what was used and what is under way."""
        if self.in_flight:
            expected += self.in_flight.expected
        return self.accounts is accounts and True not in map(gt, expected, self.left)  # type: ignore[arg-type]

    def take(self, used: Used) -> None:
        """Note what a call has used."""
        self.left = _new(Used, map(sub, self.left, used))  # as `-` does, and without its call
        self.is_idle = False


@lru_cache(maxsize=1_000)  # few amounts are ever expected: `Estimate.roughly_at_most`
def of_calls_ahead(expected: Used) -> Used:
    """Give what several requests like one may use, of whatever purpose, each with a tool's call."""
    return times(expected._replace(tool_calls=1, steps=1), CALLS_AHEAD)


@lru_cache(maxsize=1_000)
def times(used: Used, number: int) -> Used:
    """Give so many times an amount."""
    return Used._make(part * number for part in used)


def comes_near(accounts: Sequence[Account], known: Sequence[Used], ahead: Used) -> bool:
    """Whether 80 % of a limit may be used if others hold as much: who watches is told at once.

    What is `known` to be used may be out of date: what is reserved is never more than there is.
    """
    for account, used in zip(accounts, known, strict=True):
        held = times(ahead, HOLDERS[account.scope])
        if True in map(ge, map(add, used, held), account.budget.nears):
            return True
    return False
