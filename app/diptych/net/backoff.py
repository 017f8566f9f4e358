"""How long to wait before the next try: exponential backoff with full jitter.

Pure but for its clock and its source of chance, and both can be given. It neither sleeps nor
calls anything: the caller waits, and may be woken earlier.
"""

import math
import random as chance
import time
from collections.abc import Callable


class Backoff:
    """The delays between the tries of one operation, in seconds.

    The n-th delay since the last `reset` is a random number between 0 and
    `min(maximum, initial * 2**(n - 1))`, so that clients which failed together do not come back
    together. https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/

    `budget` is how long the tries may go on, counted from the first delay since the last `reset`;
    `now` is the clock that measures it, in seconds. `random` gives numbers from 0 to 1.
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
        """How many delays were given since the last `reset`."""
        self._initial = initial
        self._maximum = maximum
        self._budget = budget
        self._now = now
        self._random = random
        self._upper = min(initial, maximum)
        self._first_failure = math.inf

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget is spent: the caller should give up instead of trying again."""
        return self._now() - self._first_failure > self._budget

    def next_delay(self) -> float:
        """Return the seconds to wait before the next try; the one after may be twice as long."""
        if self.retries == 0:
            self._first_failure = self._now()
        delay = self._upper * self._random()
        self.retries += 1
        self._upper = min(2 * self._upper, self._maximum)
        return delay

    def reset(self) -> None:
        """Start over after a success: short delays again, and the whole budget."""
        self.retries = 0
        self._upper = min(self._initial, self._maximum)
        self._first_failure = math.inf
