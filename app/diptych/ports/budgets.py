"""The contract of the ledger: what the runs of a session, and of a day, have used together.

What is about to be used is reserved first and settled after: what is reserved counts as used, so
that many who ask at once go over by one call at most, if none takes more than it reserved. A
reservation is held as long as its owner renews it.

Not here: what is reserved when (`runtime.shared_budget_meter`), the budget of one run
(`loop.spending`).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from diptych.loop.budget import Budget, Limit
from diptych.loop.messages import NO_USE, Used

RESERVED_SECONDS = 30.0
"""For which a reservation is held, unless it is renewed: its owner may have died."""
LENT_SECONDS = 60.0
"""The same of what is lent, to a child or for a run's next calls. What was used of it is free for
others when the reservation ends, unless whoever takes the run up has counted it by then."""


class Account(NamedTuple):
    """One budget that several runs share.

    `scope` is as in the manifest, `perSession` or `perDay`. `key` names the account in the store:
    the session, or the day. It is kept for `seconds` after it was used last.
    """

    scope: str
    key: str
    budget: Budget
    seconds: float


class Reserved(NamedTuple):
    """What came of a reservation; `used` is what is used of each account, and is not reserved.

    `busy`: nothing is left beside what others have reserved; ask again. `gone`: nothing is left of
    `limit` of the account at this `place`. What was `lent` is told by `lend` alone.
    """

    outcome: Literal["ok", "busy", "gone"]
    used: Sequence[Used]
    place: int = 0
    limit: Limit = "tokens"
    lent: Used = NO_USE


class Ledger(Protocol):
    """The accounts of an agent. All methods raise `StoreError`, and may be repeated.

    Each does its work on all its accounts in one step.
    `entry` names one use, and is new for each. What is repeated counts once for a minute.
    """

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        """Reserve an amount of all accounts, if something is left of each limit.

        Only limits count of which the amount has something, and those of time.
        """
        ...

    async def lend(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        """Reserve for `LENT_SECONDS`, but no more of a limit than nobody else has reserved.

        Where the entry is held already, that is what was lent, and it is held for longer.
        """
        ...

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        """Reserve and settle in one step: for what is known before it is used."""
        ...

    async def renew(
        self, accounts: Sequence[Account], entries: Sequence[str], seconds: float
    ) -> None:
        """Hold reservations for so long from now."""
        ...

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        """Replace a reservation, if there is one, by what was used; gives what is used now.

        What an entry has used is counted once, however often it is settled within a minute.
        """
        ...

    async def adopt(self, account: Account, run_id: str, recorded: Used) -> None:
        """Count what is on record of a run and was never settled: its owner has died.

        Of a run that was ended in the last ten minutes nothing is counted: it was before.
        """
        ...

    async def end_run(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        """Settle the last that a run has used, and forget what it has of it all; the sums stay.

        It counts once, as in `settle`, and not for a run that was ended in the last ten minutes.
        """
        ...

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        """Say what is used of each account."""
        ...
