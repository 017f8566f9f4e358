"""When a broken connection is tried again."""

from diptych.cli.patience import GIVE_UP_SECONDS, STEADY_SECONDS, Patience


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def impatient(chance: float) -> tuple[Patience, Clock]:
    clock = Clock()
    return Patience(clock, lambda: chance), clock


def test_the_delay_doubles_up_to_a_limit() -> None:
    patience, _ = impatient(1.0)
    assert [patience.delay() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_chance_halves_it_at_most() -> None:
    patience, _ = impatient(0.0)
    assert [patience.delay() for _ in range(3)] == [0.1, 0.2, 0.4]


def test_news_begin_it_anew() -> None:
    patience, _ = impatient(1.0)
    patience.delay()
    patience.delay()
    patience.heard(is_news=True)
    assert patience.delay() == 0.2
    assert patience.is_first_try


def test_one_gives_up_when_nothing_new_has_come_for_long() -> None:
    patience, clock = impatient(1.0)
    assert patience.delay() is not None
    clock.seconds += GIVE_UP_SECONDS
    assert patience.delay() is not None
    clock.seconds += 1
    assert patience.delay() is None


def test_talk_that_tells_nothing_new_counts_when_it_lasts() -> None:
    patience, clock = impatient(1.0)
    patience.delay()
    patience.heard(is_news=False)
    assert not patience.is_first_try or patience.delay() == 0.4
    clock.seconds += STEADY_SECONDS + 10
    patience.heard(is_news=False)
    assert patience.delay() == 0.2


def test_a_long_run_that_breaks_once_is_not_given_up() -> None:
    patience, clock = impatient(1.0)
    clock.seconds += 10 * GIVE_UP_SECONDS
    assert patience.delay() == 0.2
