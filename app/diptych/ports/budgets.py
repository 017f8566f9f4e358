"""The contract of the ledger, which tracks budgets shared by the runs of a session or a day.

A call first makes a reservation, and its real use then settles it. Reservations count as used, so
concurrent callers overshoot a limit by one call at most, if none uses more than it reserved.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from diptych.core.budget import Budget, Limit
from diptych.core.messages import NO_USE, Used

RESERVED_SECONDS = 60.0
"""Lifetime of a reservation that is not renewed; its owner may have died."""


class Account(NamedTuple):
    """A budget shared by several runs.

    `scope` is `perSession` or `perDay`, as in the manifest. `key` identifies the account in the
    store by its session or day. The account is kept for `seconds` after its last use.
    """

    scope: str
    key: str
    budget: Budget
    seconds: float


class Reserved(NamedTuple):
    """The outcome of a reservation; `used` is the settled use of each account.

    `busy`: the rest is reserved by others, so try again later. `gone`: nothing is left. Both refer
    to the `limit` of the account at index `place`. `amount` is the reserved share.
    """

    outcome: Literal["ok", "busy", "gone"]
    used: Sequence[Used]
    place: int = 0
    limit: Limit = "tokens"
    amount: Used = NO_USE


class Ledger(Protocol):
    """The accounts of an agent. All methods are atomic across accounts, and raise `StoreError`.

    `entry` is a unique id for one use, shared by a reservation and its settlement. Methods may be
    retried: the same entry counts once within two minutes.
    """

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        """Reserve an amount in all accounts, if something is left of each limit.

        Only limits on what the amount contains are checked, and time limits.
        """
        ...

    async def reserve_share(
        self, accounts: Sequence[Account], entry: str, wanted: Budget, parts: int
    ) -> Reserved:
        """Reserve the `wanted` amounts, as far as available, and 1/`parts` of every other limit.

        Each reserved amount is at least 1. An existing reservation under `entry` is renewed
        unchanged if it covers all accounts. If it covers only some (the day has changed), it is
        replaced, and does not count against the new one.
        """
        ...

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        """Reserve and settle in one step, for use that is known in advance."""
        ...

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        """Extend reservations to `RESERVED_SECONDS` from now."""
        ...

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        """Replace a reservation, if there is one, by the real use; return each account's use.

        `run_id` is empty for use that is in no run's log.
        """
        ...

    async def count_record(self, account: Account, run_id: str, recorded: Used) -> None:
        """Count the part of a run's logged use that was never settled.

        A former owner may have died before settling, and the use of children may be in the log
        only. Does nothing for a run that ended in the last ten minutes: all its use was counted.
        """
        ...

    async def end_run(self, accounts: Sequence[Account], run_id: str) -> None:
        """Drop a run's subtotals: it has ended, and all its use is settled."""
        ...

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        """Return the use of each account."""
        ...
