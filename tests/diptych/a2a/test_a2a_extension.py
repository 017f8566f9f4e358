"""The delegation extension: what is written is read back, whatever else is refused."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.a2a import extension
from diptych.a2a.extension import DelegationMetadata
from diptych.core.budget import Budget
from diptych.core.errors import InvalidRequest
from diptych.core.messages import JSON, Message, ParentCall

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES: dict[str, Any] = {"agent": "planner", "run_id": "r-1", "call_id": "call_1_1"}


def test_context_is_read_as_it_was_written_without_system_messages() -> None:
    context = (Message("system", "s"), Message("user", "u"), Message("assistant", "a"))
    assert extension.read_context(extension.context_value(context)) == context[1:]


def test_terms_are_read_as_they_were_written() -> None:
    about = DelegationMetadata(
        ("http://a", "http://b"),
        7.0,
        "user:ada@example.com",
        ParentCall(**NAMES),
        deadline_pauses=True,
        lease=60.0,
        budget=Budget(tokens=5, cost=Decimal("0.000000000001")),
    )
    assert extension.read_metadata(extension.metadata_value(about)) == about
    nothing = DelegationMetadata()
    assert extension.read_metadata(extension.metadata_value(nothing)) == nothing
    assert extension.read_metadata(None) == nothing


def test_the_newest_messages_are_kept_when_there_are_too_many() -> None:
    many = [Message("user", str(n)) for n in range(60)]
    kept = extension.read_context(extension.context_value(many))
    assert [m.content for m in kept] == [str(n) for n in range(10, 60)]


def test_the_newest_messages_are_kept_when_they_are_too_long() -> None:
    long = [Message("user", "x" * 150_000), Message("user", "y" * 150_000), Message("user", "z")]
    kept = extension.read_context(extension.context_value(long))
    assert [m.content[0] for m in kept] == ["y", "z"]


def test_half_a_surrogate_pair_does_not_get_on_the_wire() -> None:
    assert extension.context_value([Message("user", "a\ud800b")]) == {
        "messages": [{"role": "user", "content": "a\ufffdb"}]
    }


@given(anything)
def test_nothing_that_is_sent_breaks_the_reader(value: JSON) -> None:
    for read in (extension.read_context, extension.read_metadata):
        try:
            read(value)
        except InvalidRequest as error:
            assert extension.URI in error.message  # noqa: PT017 - both outcomes are right


BUDGETS: list[JSON] = ["all", {"tokens": -1}, {"cost": "NaN"}, {"steps": 1.5}]
PARENTS: list[JSON] = [
    "planner",
    {"agent": "a"},
    {**NAMES, "run_id": 7},
    {**NAMES, "agent": "a\nb"},
]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("deadline", [float("nan"), float("inf"), 0, "5", True, [5]]),
        ("lease", [0.01, 1e9, "60", True]),
        ("path", ["me", [1], ["u"] * 17, [""]]),
        ("subject", [5, ["user:ada"], "a\nb", "\x1b[2J", "x" * 513]),
        ("budget", BUDGETS),
        ("parent", PARENTS),
    ],
)
def test_terms_that_are_none_are_refused_and_named(name: str, values: list[JSON]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=f"`{name}"):
            extension.read_metadata({name: value})
