"""How many runs a subject may begin."""

import pytest

from diptych.access.limits import MAX_SUBJECTS, LimitExceeded, Limits, RunLimiter


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_unfinished_runs_are_bounded() -> None:
    limiter = RunLimiter(Limits(runs_at_once=2), Clock())
    limiter.admit("a", lambda: 1)
    with pytest.raises(LimitExceeded) as caught:
        limiter.admit("a", lambda: 2)
    assert caught.value.retry_after >= 1


def test_runs_in_a_minute_are_bounded_and_the_refusal_says_when_to_come_back() -> None:
    clock = Clock()
    limiter = RunLimiter(Limits(runs_per_minute=2), clock)
    limiter.admit("a", lambda: 0)
    clock.seconds = 10
    limiter.admit("a", lambda: 0)
    limiter.admit("b", lambda: 0)
    clock.seconds = 20
    with pytest.raises(LimitExceeded) as caught:
        limiter.admit("a", lambda: 0)
    assert caught.value.retry_after == 41
    clock.seconds = 20 + caught.value.retry_after
    limiter.admit("a", lambda: 0)


def test_without_limits_nobody_counts() -> None:
    RunLimiter(Limits(), Clock()).admit("a", lambda: pytest.fail("counted"))


def test_what_is_remembered_of_subjects_is_bounded() -> None:
    limiter = RunLimiter(Limits(runs_per_minute=1), Clock())
    for n in range(MAX_SUBJECTS + 10):
        limiter.admit(str(n), lambda: 0)
    assert len(limiter._begun) <= MAX_SUBJECTS
