"""When each Agent is polled next: once in a period, spread evenly over it, sooner if asked for."""

import time
from collections.abc import Callable, Iterable

from diptych_operator.resources.kinds import NamespacedName

MAX_PER_SECOND = 10.0
"""Agents polled per second by one schedule; with more Agents the periods get longer."""

SCAN_SECONDS = 1.0
"""Seconds between two looks at all times: a thousand of them cost more than what is due."""


class PollSchedule:
    """Times by Agent. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[NamespacedName, float] = {}
        self._next_scan = 0.0

    def expedite(self, name: NamespacedName, seconds: float) -> None:
        """Poll an Agent in so many seconds, unless its next poll is sooner."""
        at = self._clock() + seconds
        self._next[name] = min(self._next.get(name, at), at)
        self._next_scan = min(self._next_scan, at)

    def pop_due(self, names: Iterable[NamespacedName], period: float) -> list[NamespacedName]:
        """Give those of `names` whose time has come; their next time is a period later.

        `names` are all Agents: any other one is forgotten. The period gets longer if more of them
        than `MAX_PER_SECOND` would be due. Their times are looked at once in `SCAN_SECONDS`, or
        when one is expedited to a time before that.
        """
        now = self._clock()
        if now < self._next_scan:
            return []
        self._next_scan = now + SCAN_SECONDS
        known = list(names)
        period = max(period, len(known) / MAX_PER_SECOND)
        for index in [index for index, name in enumerate(known) if name not in self._next]:
            self._next[known[index]] = now + period * (index + 1) / len(known)
        if len(self._next) > len(known):
            for name in self._next.keys() - set(known):
                del self._next[name]
        due = [name for name in known if self._next[name] <= now]
        self._next |= dict.fromkeys(due, now + period)
        return due
