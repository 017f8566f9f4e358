"""When a broken connection is tried again, and when no more: pure but for clock and chance."""

import random
import time
from collections.abc import Callable

FIRST_SECONDS, MAX_SECONDS = 0.2, 5.0
GIVE_UP_SECONDS = 120.0
"""Without anything new for so long, one stops trying: whoever took the run over had less to do."""
STEADY_SECONDS = 20.0
"""A connection that still speaks after so long is well again."""


class Patience:
    """How long to wait before the next try: doubled each time, and never quite the same."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self._now = now
        self._chance = chance
        self._tries = 0
        self._last_news = self._last_try = now()

    @property
    def is_first_try(self) -> bool:
        """Whether the delay that was just given is the first since all was well."""
        return self._tries == 1

    def heard(self, *, is_news: bool) -> None:
        """Take note that something came. Talk that tells nothing new counts when it has lasted."""
        if is_news or self._now() - self._last_try > STEADY_SECONDS:
            self._tries = 0

    def delay(self) -> float | None:
        """Give the seconds to wait before the next try; None if there is to be none."""
        now = self._now()
        if self._tries == 0:
            self._last_news = now
        elif now - self._last_news > GIVE_UP_SECONDS:
            return None
        most = min(FIRST_SECONDS * 2.0 ** min(self._tries, 10), MAX_SECONDS)
        self._tries += 1
        wait = most * (0.5 + self._chance() / 2)
        self._last_try = now + wait
        return wait
