"""What is counted, and who is refused when there is no more."""

import tracemalloc

import orjson
import pytest

from diptych.core.codec import Record
from diptych.core.errors import Overloaded, SubjectOverloaded
from diptych.net.memory_budget import (
    ADMITTED,
    MemoryBudget,
    current_share,
    json_size,
    record_size,
    set_share,
    text_size,
)


def test_what_is_new_is_admitted_while_there_is_room_and_refused_then() -> None:
    budget, said = MemoryBudget(1_000), []
    budget.on_full = lambda: said.append(budget.used)
    shares = [budget.share() for _ in range(3)]
    shares[0].admit(400)
    shares[1].admit(300)
    with pytest.raises(Overloaded) as refused:
        shares[2].admit(100)
    assert refused.value.retry_after == 1
    assert (budget.used, shares[2].size, said) == (700, 0, [700])
    shares[0].release()
    shares[2].admit(100)
    assert budget.used == 400


def test_what_was_admitted_grows_into_the_rest_and_small_ones_do_not_pay_for_large_ones() -> None:
    budget = MemoryBudget(1_000)
    large, small = budget.share(), budget.share()
    small.admit(10)
    large.admit(int(ADMITTED * 1_000) - 10)
    large.grow(250)
    assert not large.is_beyond
    large.grow(1)
    assert large.is_beyond
    assert not small.is_beyond


def test_nothing_larger_than_all_there_is_begins_even_alone() -> None:
    budget = MemoryBudget(1_000)
    assert not budget.can_ever_hold(800)
    with pytest.raises(Overloaded):
        budget.share().admit(800)


def test_a_subject_may_hold_half_and_others_still_have_room() -> None:
    budget = MemoryBudget(1_000)
    greedy, other = budget.share("key:greedy"), budget.share("key:other")
    greedy.admit(300)
    with pytest.raises(SubjectOverloaded, match="key:greedy"):
        budget.share("key:greedy").admit(100)
    other.admit(300)
    greedy.release()
    assert budget.by_subject == {"key:other": 300}


def test_without_a_limit_everything_is_counted_and_nothing_refused() -> None:
    budget = MemoryBudget()
    budget.share("a").admit(2**50)
    assert budget.used == 2**50
    assert budget.has_room(2**50)


def test_a_request_finds_its_own_share() -> None:
    share = MemoryBudget(1_000).share()
    set_share(share)
    assert current_share() is share


# Sizes


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 100_000,
        [{}] * 100_000,
        [{"a": n} for n in range(30_000)],
        {str(n): "" for n in range(50_000)},
        [{"a": 1}] * 20,
    ],
)
def test_no_structure_takes_more_than_is_counted(value: object) -> None:
    encoded = orjson.dumps(value)
    # Other threads may take memory meanwhile: those of xdist do.
    assert min(_memory_of(encoded, value) for _ in range(3)) <= json_size(encoded)


def _memory_of(encoded: bytes, value: object) -> int:
    tracemalloc.start()
    try:
        parsed = orjson.loads(encoded)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parsed == value
    return taken


def test_a_text_counts_with_two_copies_and_a_record_with_all_it_says() -> None:
    assert 60_000 < text_size("x" * 10_000 + "\N{GRINNING FACE}") < 60_200  # four bytes for each
    assert record_size(Record("r", "s", 1, "text", 0.0, "x" * 9_000, {})) > 27_000
    assert record_size(Record("r", "s", 1, "called", 0.0, {"a": "x" * 9_000}, {})) > 18_000
    assert record_size(Record("r", "s", 1, "text", 0.0, "", {"a": "x" * 9_000})) > 18_000
