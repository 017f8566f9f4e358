"""Watch staleness: for how long a watch has been silent though it should not be.

Only time counts in which the API answers lists: at any other time silence is no fault of this
process, and a restart would not help.
"""

import time
from collections.abc import Callable, Iterable


class WatchStaleness:
    """When each watch of a term has last sent data, by its API path."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_data: dict[str, float] = {}
        self._listed_since: float | None = None
        """Since when all lists have succeeded; None if the last attempt failed."""

    def expect(self, paths: Iterable[str]) -> None:
        """Expect data on these paths from now on."""
        self._last_data = dict.fromkeys(paths, self._clock())

    def note_data(self, path: str) -> None:
        """Note that a watch sent data, or that the API said why it may not be watched."""
        if path in self._last_data:
            self._last_data[path] = self._clock()

    def note_lists(self, *, are_complete: bool) -> None:
        """Note whether all lists have just succeeded."""
        if not are_complete:
            self._listed_since = None
        elif self._listed_since is None:
            self._listed_since = self._clock()

    def seconds(self) -> float:
        """Return the longest silence of any watch in seconds; 0 while no data is expected."""
        if self._listed_since is None or not self._last_data:
            return 0.0
        return self._clock() - max(min(self._last_data.values()), self._listed_since)
