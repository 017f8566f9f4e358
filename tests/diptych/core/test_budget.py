"""Budgets as values: money is exact, and what is left is never less than nothing."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.budget import (
    Budget,
    decode_budget,
    decode_used,
    encode_budget,
    limit_text,
)
from diptych.core.messages import Used

COUNTS = st.integers(0, 10**12)
MONEY = st.decimals(0, 10**9, places=12)
LIMITS = st.builds(
    Budget,
    *(st.none() | COUNTS, st.none() | MONEY, *[st.none() | COUNTS] * 4),
)
USED = st.builds(Used, COUNTS, MONEY, *[COUNTS] * 4)


@settings(deadline=None)
@given(LIMITS, USED)
def test_what_is_left_and_what_is_used_make_the_limit(limits, used):
    left = limits.left(used)
    for name, limit in limits.limits:
        rest = getattr(left, name)
        assert rest >= 0
        assert rest + getattr(used, name) == limit or (rest == 0 and getattr(used, name) > limit)
        assert (limits.gone(used, name) == name) == (rest == 0)


@settings(deadline=None)
@given(LIMITS, LIMITS)
def test_a_budget_can_only_be_tightened(one, other):
    both = one.tightened(other)
    assert both == other.tightened(one)
    for name, limit in one.limits:
        assert getattr(both, name) <= limit


@settings(deadline=None)
@given(LIMITS, USED)
def test_json_loses_nothing(limits, used):
    assert decode_budget(encode_budget(limits)) == limits
    assert decode_used(encode_budget(used)) == used


def test_amounts_are_said_as_people_write_them():
    budget, used = Budget(tokens=1_000, cost=Decimal("0.50")), Used(1_204, Decimal("0.5100"))
    assert limit_text("tokens", used, budget) == "1,204 of 1,000 tokens"
    assert limit_text("cost", used, budget) == "0.51 of 0.5 in money"


@pytest.mark.parametrize("limit", range(1, 41))
def test_a_whole_limit_is_near_from_80_percent_on(limit: int) -> None:
    budget = Budget(model_calls=limit)
    for used in range(limit + 1):
        after = Used(model_calls=used)
        assert budget.is_warned(after) == (used * 5 >= limit * 4)
        is_news = used * 5 >= limit * 4 > (used - 1) * 5
        assert budget.warnings(Used(model_calls=used - 1), after) == ["model_calls"] * is_news
