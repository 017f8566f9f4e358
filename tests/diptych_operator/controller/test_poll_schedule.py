"""Whose turn it is to be looked after."""

from diptych_operator.controller.poll_schedule import PollSchedule


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


NAMES = [("team", name) for name in "abcd"]


def taken(schedule, clock, until, names=NAMES, step=1.0):
    """Give when it was whose turn."""
    found = []
    while clock.now < until:
        clock.now += step
        found += [(clock.now, name[1]) for name in schedule.pop_due(names, 20.0)]
    return found


def test_turns_are_spread_evenly_and_come_once_in_a_period():
    clock = Clock()
    found = taken(PollSchedule(clock), clock, 43, step=1.0)
    assert [name for _, name in found] == [*"abcd", *"abcd"]
    times = [at for at, name in found if name == "b"]
    assert times[1] - times[0] == 20


def test_a_turn_may_come_sooner_and_never_later():
    clock = Clock()
    schedule = PollSchedule(clock)
    schedule.pop_due(NAMES, 20.0)
    schedule.expedite(NAMES[3], 2.0)
    schedule.expedite(NAMES[3], 9.0)
    assert taken(schedule, clock, 3)[0] == (2.0, "d")


def test_who_is_gone_has_no_turn():
    clock = Clock()
    schedule = PollSchedule(clock)
    schedule.pop_due(NAMES, 20.0)
    assert {name for _, name in taken(schedule, clock, 60, names=NAMES[:1])} == {"a"}
    assert list(schedule._next) == NAMES[:1]
