"""Limits per subject: unfinished runs, and runs started per minute."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from diptych.core.errors import SubjectOverloaded

MINUTE = 60.0  # seconds
MAX_SUBJECTS = 10_000  # with a count of started runs


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each subject at one pod; None means unlimited."""

    runs_at_once: int | None = None
    runs_per_minute: int | None = None


class LimitExceeded(SubjectOverloaded):
    """A subject has too many runs. `retry_after` is in whole seconds, at least 1."""

    code = "too_many_runs"


class RunLimiter:
    """Counts and limits runs; `now` returns seconds of a monotonic clock."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._begun: dict[str, deque[float]] = {}

    def admit(self, subject: str, unfinished: Callable[[], int]) -> None:
        """Count a run that is about to start; `unfinished` returns the number of other runs.

        Raises `LimitExceeded` without counting the run.
        """
        at_once, per_minute = self._limits.runs_at_once, self._limits.runs_per_minute
        if at_once is not None and unfinished() >= at_once:
            raise LimitExceeded(f"{subject} has {at_once} unfinished runs, its limit")
        if per_minute is not None:
            self._note_begun(subject, per_minute)

    def _note_begun(self, subject: str, most: int) -> None:
        now = self._now()
        begun = self._begun.pop(subject, None) or deque()
        while begun and begun[0] <= now - MINUTE:
            begun.popleft()
        self._begun[subject] = begun  # at the end: in order of last use
        if len(begun) >= most:
            wait = int(begun[0] + MINUTE - now) + 1
            message = f"{subject} has started {most} runs in a minute, its limit"
            raise LimitExceeded(message, retry_after=wait)
        begun.append(now)
        while len(self._begun) > MAX_SUBJECTS:
            del self._begun[next(iter(self._begun))]
