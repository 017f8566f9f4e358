"""When a run must end: by its caller's deadline, and by the manifest's.

The manifest's stands still while an approval waits: a person may take longer than a run may.
"""

import asyncio


class Deadline:
    """The deadlines of one run, as times of the event loop's clock; None for no limit."""

    def __init__(self, callers: float | None = None, own: float | None = None) -> None:
        self._callers = callers
        self._own = own
        self._stopped_at: float | None = None

    @property
    def at(self) -> float | None:
        """When the run must end, as things stand."""
        own = self._own if self._stopped_at is None else None
        return min((each for each in (self._callers, own) if each is not None), default=None)

    @property
    def seconds_left(self) -> float | None:
        """What is left, at least 0; None for no limit."""
        at = self.at
        return None if at is None else max(at - asyncio.get_running_loop().time(), 0.0)

    @property
    def pauses(self) -> bool:
        """Whether the deadline that ends the run first is one that stands still."""
        if self._own is None:
            return False
        return self._callers is None or self._own <= self._callers

    def set_paused(self, is_paused: bool) -> bool:
        """Let the manifest's deadline stand still, while an approval waits, or go on.

        Gives whether that is new.
        """
        now = asyncio.get_running_loop().time()
        if is_paused == (self._stopped_at is not None):
            return False
        if self._stopped_at is not None and self._own is not None:
            self._own += now - self._stopped_at
        self._stopped_at = now if is_paused else None
        return True
