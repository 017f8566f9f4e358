"""Exponential backoff with full jitter.

It only computes delays: the caller sleeps, and may wake up earlier.
"""

import math
import random as chance
import time
from collections.abc import Callable


class Backoff:
    """The delays between retries of one operation, in seconds.

    The n-th delay since the last `reset` is random between 0 and
    `min(maximum, initial * 2**(n - 1))`, so that clients which failed together do not retry
    together. https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

    `budget` limits the time spent on retries, measured by the clock `now` from the first delay
    since the last `reset`. `random` returns numbers from 0 to 1.
    """

    def __init__(
        self,
        initial: float,
        maximum: float,
        *,
        budget: float = math.inf,
        now: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = chance.random,
    ) -> None:
        self.retries = 0
        """The number of delays since the last `reset`."""
        self._initial = initial
        self._maximum = maximum
        self._budget = budget
        self._now = now
        self._random = random
        self._upper = min(initial, maximum)
        self._first_failure = math.inf

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget is spent, so the caller should give up."""
        return self._now() - self._first_failure > self._budget

    def next_delay(self) -> float:
        """Return the seconds to wait before the next retry, and double the upper bound."""
        if self.retries == 0:
            self._first_failure = self._now()
        delay = self._upper * self._random()
        self.retries += 1
        self._upper = min(2 * self._upper, self._maximum)
        return delay

    def reset(self) -> None:
        """Start over after a success, with short delays and the full budget."""
        self.retries = 0
        self._upper = min(self._initial, self._maximum)
        self._first_failure = math.inf
