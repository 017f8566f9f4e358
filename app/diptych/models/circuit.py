"""The circuit breaker of one endpoint: asks an endpoint that keeps failing only now and then.

Pure but for its clock, which can be given. https://martinfowler.com/bliki/CircuitBreaker.html
"""

import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

MAX_FAILURES = 5
FAILURE_WINDOW = 30.0  # seconds, as all times here
OPEN_TIME = 10.0


class CircuitState(Enum):
    """How far an endpoint is trusted."""

    CLOSED = auto()  # it is asked
    OPEN = auto()  # it has failed too often, and is not asked
    HALF_OPEN = auto()  # one request tries whether it is back


class CircuitBreaker:
    """Opens after `MAX_FAILURES` failures within `FAILURE_WINDOW`, for `OPEN_TIME` (faults.md M2).

    Then one request is let through: it closes the circuit by its success, and opens it again by its
    failure.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.state = CircuitState.CLOSED
        self._now = now
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._retry_at = 0.0

    def admit(self) -> bool:
        """Say whether the endpoint should be asked; of an open circuit, take the probe's place.

        A probe that is never reported, as nobody needed it, holds others back for `OPEN_TIME`.
        """
        if self.state is CircuitState.CLOSED:
            return True
        if self._now() < self._retry_at:
            return False
        self.state = CircuitState.HALF_OPEN
        self._retry_at = self._now() + OPEN_TIME
        return True

    def report_success(self) -> None:
        """The endpoint answered, be it with a refusal."""
        self.state = CircuitState.CLOSED
        self._failures.clear()

    def report_failure(self) -> None:
        """The endpoint failed, or could not be reached."""
        now = self._now()
        self._failures.append(now)
        is_full = len(self._failures) == MAX_FAILURES
        if self.state is CircuitState.HALF_OPEN or (
            is_full and now - self._failures[0] <= FAILURE_WINDOW
        ):
            self.state = CircuitState.OPEN
            self._retry_at = now + OPEN_TIME
