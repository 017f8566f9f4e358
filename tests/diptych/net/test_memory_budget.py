"""What is counted, and who is refused when there is no more."""

import tracemalloc

import orjson
import pytest

from diptych.core.errors import Overloaded, SubjectOverloaded
from diptych.net.memory_budget import (
    ADMITTED,
    MemoryBudget,
    json_size,
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


def test_a_part_may_take_its_share_and_no_more_than_the_whole_has() -> None:
    whole = MemoryBudget(1_000)
    one, two, three = (whole.part(0.5) for _ in range(3))
    first, second, third = one.share("ada"), two.share(), three.share()
    first.admit(300)
    with pytest.raises(Overloaded):
        first.admit(100)
    second.admit(300)
    with pytest.raises(Overloaded):
        third.admit(200)
    assert not three.has_room(200)
    third.admit(100)
    assert (whole.used, one.by_subject["ada"], whole.by_subject["ada"]) == (700, 300, 0)
    second.grow(400)
    assert second.is_beyond
    assert first.is_beyond  # a large part of the whole, which is over its limit
    for share in (first, second, third):
        share.release()
    assert (whole.used, one.used, dict(one.by_subject)) == (0, 0, {})


def test_a_subject_may_hold_half_and_others_still_have_room() -> None:
    budget = MemoryBudget(1_000)
    greedy, other = budget.share("key:greedy"), budget.share("key:other")
    greedy.admit(300)
    with pytest.raises(SubjectOverloaded, match="key:greedy"):
        budget.share("key:greedy").admit(100)
    other.admit(300)
    greedy.release()
    assert budget.by_subject == {"key:other": 300}


# Sizes


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 100_000,
        [{"a": n} for n in range(30_000)],
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
