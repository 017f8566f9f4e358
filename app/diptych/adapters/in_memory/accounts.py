"""What is known of each account, in memory, and what is left of several."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from operator import add, ge

from diptych.loop.budget import Limit
from diptych.loop.messages import NO_USE, Used
from diptych.ports.budgets import Account, Reserved

_new = tuple.__new__


@dataclass(slots=True)
class Row:
    """What is known of one account; most have one run, and are idle from its end on.

    `total` is all that is `reserved`. What each run has used is kept as it was settled: only
    `count_record` adds it up. Before `due` no reservation runs out.
    """

    used: Used = NO_USE
    total: Used = NO_USE
    reserved: dict[str, tuple[float, Used]] = field(default_factory=dict)
    runs: dict[str, list[Used]] = field(default_factory=dict)
    last_use: float = 0.0
    due: float = inf

    def claimed_beside(self, entry: str) -> Used:
        """What is used, or reserved by others than an entry."""
        claimed, own = self.used + self.total, self.reserved.get(entry)
        return claimed - own[1] if own else claimed

    def drop_expired(self, now: float) -> None:
        """Drop reservations that nobody has renewed."""
        self.reserved = {name: each for name, each in self.reserved.items() if each[0] >= now}
        self.due = min((until for until, _ in self.reserved.values()), default=inf)
        self.total = sum((amount for _, amount in self.reserved.values()), NO_USE)

    def renew(self, entry: str, until: float) -> None:
        """Have a reservation last until then at least, if there is one."""
        if found := self.reserved.get(entry):
            self.reserved[entry] = max(until, found[0]), found[1]

    def release(self, entry: str) -> None:
        """End a reservation, if there is one."""
        if found := self.reserved.pop(entry, None):
            self.total = self.total - found[1] if self.reserved else NO_USE


def is_free(
    accounts: Sequence[Account], rows: Sequence[Row], entry: str, amount: Used = NO_USE
) -> bool:
    """Whether more than an amount is left of each limit, for an entry that has reserved nothing."""
    for account, row in zip(accounts, rows, strict=True):
        if entry in row.reserved:
            return False
        wanted = map(add, row.used, amount)
        if row.reserved:
            wanted = map(add, wanted, row.total)
        if True in map(ge, wanted, account.budget.ends):
            return False
    return True


def reserve(rows: Sequence[Row], entry: str, amount: Used, until: float) -> Sequence[Used]:
    """Reserve an amount of all accounts, in place of what the entry has reserved of some.

    Gives what is used of each.
    """
    used = []
    for row in rows:
        if entry in row.reserved:
            row.release(entry)
        row.total = _new(Used, map(add, row.total, amount)) if row.reserved else amount
        row.reserved[entry] = until, amount
        row.due = min(row.due, until)
        used.append(row.used)
    return used


def reserved_by(entry: str, rows: Sequence[Row]) -> Used | None:
    """Give what an entry has reserved of accounts, None unless it has of each."""
    for row in rows:
        if entry not in row.reserved:
            return None
    return rows[0].reserved[entry][1] if rows else None


def refusal(
    accounts: Sequence[Account], rows: Sequence[Row], entry: str, wanted: Used
) -> Reserved | None:
    """Say why an amount cannot be had beside what others have, None if it can."""
    busy = _first_without(accounts, [row.claimed_beside(entry) for row in rows], wanted)
    if busy is None:
        return None
    used = [row.used for row in rows]
    gone = _first_without(accounts, used, wanted)
    return Reserved("gone", used, *gone) if gone else Reserved("busy", used, *busy)


def beyond(one: Used, other: Used) -> Used:
    """Give what one has more of than another."""
    return Used._make(map(max, one - other, NO_USE))


def within(accounts: Sequence[Account], taken: Sequence[Used], wanted: Used) -> Used:
    """Give as much of an amount as is left of each limit."""
    for account, used in zip(accounts, taken, strict=True):
        for name, limit in account.budget.limits:
            if 0 < getattr(wanted, name) > (left := limit - getattr(used, name)):
                wanted = wanted._replace(**{name: left})
    return wanted


def _first_without(
    accounts: Sequence[Account], taken: Sequence[Used], wanted: Used
) -> tuple[int, Limit] | None:
    """Find the first limit of which nothing is left, if the amount has something of it."""
    for index, account in enumerate(accounts):
        used = taken[index]
        if account.budget.is_left(used):  # as a rule; to look at each limit takes longer
            continue
        for name, limit in account.budget.limits:
            is_gone = getattr(used, name) >= limit
            if is_gone and (name == "wall_clock" or getattr(wanted, name) > 0):
                return index, name
    return None
