"""When each Agent is polled next: once in a period, spread evenly over it, sooner if asked for."""

import time
from collections.abc import Callable, Iterable

from diptych_operator.resources.kinds import NamespacedName


class PollSchedule:
    """Times by Agent. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[NamespacedName, float] = {}

    def expedite(self, name: NamespacedName, seconds: float) -> None:
        """Poll an Agent in so many seconds, unless its next poll is sooner."""
        at = self._clock() + seconds
        self._next[name] = min(self._next.get(name, at), at)

    def pop_due(self, names: Iterable[NamespacedName], period: float) -> list[NamespacedName]:
        """Give those of `names` whose time has come; their next time is a period later.

        `names` are all Agents: any other one is forgotten.
        """
        now, known = self._clock(), list(names)
        for index in [index for index, name in enumerate(known) if name not in self._next]:
            self._next[known[index]] = now + period * (index + 1) / len(known)
        if len(self._next) > len(known):
            for name in self._next.keys() - set(known):
                del self._next[name]
        due = [name for name in known if self._next[name] <= now]
        self._next |= dict.fromkeys(due, now + period)
        return due
