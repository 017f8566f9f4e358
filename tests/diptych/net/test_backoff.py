"""How long one waits before the next try."""

from diptych.net.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def longest_delays(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_delay() for _ in range(count)]


def test_the_longest_delay_doubles_up_to_the_maximum():
    backoff = Backoff(0.2, 5.0, random=lambda: 1.0)
    assert longest_delays(backoff, 7) == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_jitter_is_full_each_delay_is_that_part_of_the_longest_which_chance_says():
    assert longest_delays(Backoff(0.2, 5.0, random=lambda: 0.5), 3) == [0.1, 0.2, 0.4]
    assert longest_delays(Backoff(0.2, 5.0, random=lambda: 0.0), 3) == [0.0, 0.0, 0.0]


def test_the_budget_is_spent_when_the_first_delay_was_longer_ago():
    clock = Clock()
    backoff = Backoff(0.2, 5.0, budget=120.0, now=clock)
    backoff.next_delay()
    clock.seconds += 120
    assert not backoff.is_exhausted
    backoff.next_delay()
    clock.seconds += 1
    assert backoff.is_exhausted


def test_a_reset_gives_the_whole_budget_again():
    clock = Clock()
    backoff = Backoff(0.2, 5.0, budget=120.0, now=clock)
    backoff.next_delay()
    clock.seconds += 121
    backoff.reset()
    assert not backoff.is_exhausted
    backoff.next_delay()
    clock.seconds += 119
    assert not backoff.is_exhausted


def test_no_delay_is_longer_than_the_maximum_however_many_there_were():
    delays = longest_delays(Backoff(0.05, 1.0, random=lambda: 1.0), 5_000)
    assert max(delays) == delays[-1] == 1.0
