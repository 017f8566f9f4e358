"""Whose turn it is: each name once in a period, spread evenly over it, some of them sooner."""

import time
from collections.abc import Callable, Iterable

from diptych_operator.resources.kinds import Name


class Turns:
    """A timetable. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[Name, float] = {}

    def soon(self, name: Name, seconds: float) -> None:
        """Let it be a name's turn in so many seconds, unless it is before."""
        at = self._clock() + seconds
        self._next[name] = min(self._next.get(name, at), at)

    def take(self, names: Iterable[Name], period: float) -> list[Name]:
        """Name those of `names` whose turn it is; the next one is a period later."""
        now, known = self._clock(), list(names)
        for index, name in enumerate(known):
            if name not in self._next:
                self._next[name] = now + period * (index + 1) / len(known)
        for name in self._next.keys() - set(known):
            del self._next[name]
        ripe = [name for name in known if self._next[name] <= now]
        self._next |= dict.fromkeys(ripe, now + period)
        return ripe
