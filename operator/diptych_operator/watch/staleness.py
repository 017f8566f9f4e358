"""Watch staleness: for how long a watch has been silent though it should not be.

Only time counts in which this operator watches and the API answers lists: at any other time silence
is no fault of this process, and a restart would not help. The record outlives terms, so that a
watch that never starts is noticed, too.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class WatchStaleness:
    """When each watch has last sent data, by its API path. `clock` gives monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    _last_data: dict[str, float] = field(default_factory=dict)
    _complete_since: float | None = None
    """Since when all lists have succeeded; None if the last attempt failed."""
    _paused_at: float | None = 0.0
    """Since when no data is expected; None while it is."""

    def resume(self, paths: Iterable[str]) -> None:
        """Expect data on these paths from now on; the pause does not count as silence."""
        now = self.clock()
        pause = 0.0 if self._paused_at is None else now - self._paused_at
        self._paused_at = None
        self._last_data = {
            path: self._last_data[path] + pause if path in self._last_data else now
            for path in paths
        }

    def pause(self) -> None:
        """Expect no data for now."""
        if self._paused_at is None:
            self._paused_at = self.clock()

    def note_data(self, path: str) -> None:
        """Note that a watch sent data, or that the API said why it may not be watched."""
        if path in self._last_data:
            self._last_data[path] = self.clock()

    def note_lists(self, *, are_complete: bool) -> None:
        """Note whether all lists have just succeeded."""
        if not are_complete:
            self._complete_since = None
        elif self._complete_since is None:
            self._complete_since = self.clock()

    def seconds(self) -> float:
        """Give the longest silence of any watch in seconds; 0 while no data is expected."""
        if self._paused_at is not None or self._complete_since is None:
            return 0.0
        now, since = self.clock(), self._complete_since
        return max((now - max(at, since) for at in self._last_data.values()), default=0.0)
