"""The contract of the ledger, which counts budgets that the runs of a session or a day share.

A call reserves first; then its real use is settled in the place of the reservation. Reservations
count as used, so that many callers at once go over by one call at most, if none takes more than it
reserved.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from diptych.core.budget import Budget, Limit
from diptych.core.messages import NO_USE, Used

RESERVED_SECONDS = 60.0
"""For which a reservation lasts, unless it is renewed: its owner may have died."""


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
    """The outcome of a reservation; `used` is the settled use of each account.

    `busy`: others have reserved the rest; ask again. `gone`: nothing is left. Both concern a
    `limit` of the account at this `place`. `amount` is the reserved share.
    """

    outcome: Literal["ok", "busy", "gone"]
    used: Sequence[Used]
    place: int = 0
    limit: Limit = "tokens"
    amount: Used = NO_USE


class Ledger(Protocol):
    """The accounts of an agent. All methods raise `StoreError`, and may be repeated.

    Each does its work on all its accounts in one step.
    `entry` names one use, and is new for each; a reservation and its settlement have the same. What
    is repeated within two minutes counts once.
    """

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        """Reserve an amount of all accounts, if something is left of each limit.

        Only limits count of which the amount has something, and those of time.
        """
        ...

    async def reserve_share(
        self, accounts: Sequence[Account], entry: str, wanted: Budget, parts: int
    ) -> Reserved:
        """Reserve what is `wanted`, as far as it is left; of other limits one of so many parts.

        Each is at least 1. A reservation of all accounts is renewed as it is; one of some, as those
        of yesterday, is replaced, and is not in its own way.
        """
        ...

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        """Reserve and settle in one step, for use that is known before."""
        ...

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        """Extend reservations to `RESERVED_SECONDS` from now."""
        ...

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        """Replace a reservation, if there is one, by real use; returns the use of each account.

        Use that is on no run's record has an empty `run_id`.
        """
        ...

    async def count_record(self, account: Account, run_id: str, recorded: Used) -> None:
        """Count use that is on a run's record and was not settled.

        A former owner may have died before it settled, and what children have used may be on the
        record alone. Of a run that was ended in the last ten minutes nothing is counted: all was.
        """
        ...

    async def end_run(self, accounts: Sequence[Account], run_id: str) -> None:
        """Forget how much of the sums is a run's: it has ended, and all of it is settled."""
        ...

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        """Return the use of each account."""
        ...
