"""For how long the watches have told nothing, though they should.

Only that time counts in which this operator leads and the API answers lists: in any other, silence
is no fault of this process, and a restart would not help. The record outlives a session, so that
watches which never come about are noticed, too.

Not here: what follows from it (`health`), how it is heard (`connection`).
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Silence:
    """Since when each watch has been silent, by the path that it watches."""

    clock: Callable[[], float] = time.monotonic
    _heard: dict[str, float] = field(default_factory=dict)
    _listed_since: float | None = None
    _rests_since: float | None = 0.0

    def expect(self, paths: Iterable[str]) -> None:
        """Begin, or go on, to expect these watches."""
        now = self.clock()
        rested = 0.0 if self._rests_since is None else now - self._rests_since
        self._rests_since = None
        self._heard = {
            path: self._heard[path] + rested if path in self._heard else now for path in paths
        }

    def rest(self) -> None:
        """Expect nothing for now."""
        if self._rests_since is None:
            self._rests_since = self.clock()

    def heard(self, path: str) -> None:
        """Note that a watch is there, or that the API has told why it may not be."""
        if path in self._heard:
            self._heard[path] = self.clock()

    def listed(self, *, is_whole: bool) -> None:
        """Note whether the API has just given all lists that it was asked for."""
        if not is_whole:
            self._listed_since = None
        elif self._listed_since is None:
            self._listed_since = self.clock()

    def longest(self) -> float:
        """Give the longest silence of any watch that is expected, in seconds."""
        if self._rests_since is not None or self._listed_since is None:
            return 0.0
        now, since = self.clock(), self._listed_since
        return max((now - max(at, since) for at in self._heard.values()), default=0.0)
