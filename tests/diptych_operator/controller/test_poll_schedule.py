"""When each Agent is polled."""

from collections import Counter

from diptych_operator.controller.readiness_poll import MAX_PER_SECOND, PollSchedule


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


NAMES = [("team", name) for name in "abcd"]


def polls(schedule, clock, until, names=NAMES, step=1.0):
    """Give the times of all polls."""
    found = []
    while clock.now < until:
        clock.now += step
        found += [(clock.now, name[1]) for name in schedule.pop_due(names, 20.0)]
    return found


def test_polls_are_spread_evenly_and_come_once_in_a_period():
    clock = Clock()
    found = polls(PollSchedule(clock), clock, 43, step=1.0)
    assert [name for _, name in found] == [*"abcd", *"abcd"]
    times = [at for at, name in found if name == "b"]
    assert times[1] - times[0] == 20


def test_many_agents_are_polled_more_rarely():
    clock = Clock()
    names = [("team", f"agent-{n}") for n in range(1_000)]
    found = polls(PollSchedule(clock), clock, 210, names)
    by_second = Counter(at for at, _ in found)
    assert max(by_second.values()) <= MAX_PER_SECOND + 1
    times = [at for at, name in found if name == "agent-7"]
    assert times[1] - times[0] == 100


def test_a_poll_may_be_expedited_and_never_delayed():
    clock = Clock()
    schedule = PollSchedule(clock)
    schedule.pop_due(NAMES, 20.0)
    schedule.expedite(NAMES[3], 2.0)
    schedule.expedite(NAMES[3], 9.0)
    assert polls(schedule, clock, 3)[0] == (2.0, "d")


def test_an_agent_that_is_gone_is_not_polled():
    clock = Clock()
    schedule = PollSchedule(clock)
    schedule.pop_due(NAMES, 20.0)
    assert {name for _, name in polls(schedule, clock, 60, names=NAMES[:1])} == {"a"}
    assert list(schedule._next) == NAMES[:1]
