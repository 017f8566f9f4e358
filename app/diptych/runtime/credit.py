"""What a run holds of shared budgets for its next calls, so that not each of them asks the ledger.

Only far from the end of all limits: there nobody waits for what others hold. All that a call may
use is reserved before it is made, as it is without credit.

Not here: when it is taken and returned (`shared_budget_meter`), what a request may use
(`estimate`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.loop.messages import NO_USE, Used
from diptych.ports.budgets import Account
from diptych.runtime.run_meter import ModelCall

CALLS_AHEAD = 8  # requests to the model, and as many calls of tools, that are held at most
HOLDERS = {"perSession": 2, "perDay": 256}
"""How many runs may hold as much of an account before 80 % of a limit are used: what is held is not
known, nor is who settles last. A session executes one run at a time."""


@dataclass(slots=True)
class Credit:
    """A reservation for several calls: `requests` more that use `each` at most, and `tool_calls`.

    `used` is what they have used, and is not settled; of that `unrecorded` is on no record, as its
    requests were cancelled. `in_flight` is the one that is under way.
    """

    accounts: Sequence[Account]
    entry: str
    each: Used
    requests: int
    tool_calls: int
    used: Used = NO_USE
    unrecorded: Used = NO_USE
    in_flight: ModelCall | None = None
    used_at: float = 0.0  # on the event loop's clock

    def covers(self, accounts: Sequence[Account], expected: Used) -> bool:
        """Whether one more request is reserved that may use so much."""
        return (
            self.requests > 0
            and self.accounts is accounts
            and expected.tokens <= self.each.tokens
            and expected.cost <= self.each.cost
        )

    def covers_a_tool(self, accounts: Sequence[Account]) -> bool:
        """Whether one more call of a tool is reserved."""
        return self.tool_calls > 0 and self.accounts is accounts

    def take(self, used: Used, now: float) -> None:
        """Note what a call has used."""
        self.used += used
        self.used_at = now


def with_a_call(expected: Used) -> Used:
    """Give what a request may use, of whatever purpose, with a call of a tool."""
    return expected._replace(tool_calls=1, steps=1)


def times(used: Used, number: int) -> Used:
    """Give so many times an amount."""
    return Used._make(part * number for part in used)


def comes_near(accounts: Sequence[Account], known: Sequence[Used], ahead: Used) -> bool:
    """Whether 80 % of a limit may be used if others hold as much: who watches is told at once.

    What is `known` to be used may be out of date: what is reserved is never more than there is.
    """
    return any(
        account.budget.is_near(used + times(ahead, HOLDERS[account.scope]))
        for account, used in zip(accounts, known, strict=True)
    )


def calls_within(each: Used, lent: Used) -> int:
    """Say for how many calls an amount is enough."""
    parts: Iterable[tuple[Any, Any]] = zip(lent, each, strict=True)
    return min(int(got // amount) for got, amount in parts if amount)
