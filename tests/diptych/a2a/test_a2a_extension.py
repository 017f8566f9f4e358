"""The delegation extension: what is written is read back, whatever else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.a2a import extension
from diptych.a2a.extension import DelegationMetadata
from diptych.core.errors import InvalidRequest
from diptych.core.messages import JSON, Message, ParentCall

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def test_context_is_read_as_it_was_written_without_system_messages() -> None:
    context = (Message("system", "s"), Message("user", "u"), Message("assistant", "a"))
    assert extension.read_context(extension.context_value(context)) == context[1:]


def test_terms_are_read_as_they_were_written() -> None:
    parent = ParentCall("planner", "r-1", "call_1_1")
    about = DelegationMetadata(("http://a", "http://b"), 7.0, "user:ada", parent)
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


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1, 0, "5", True, [5]])
def test_a_deadline_that_is_no_time_is_refused(seconds: JSON) -> None:
    with pytest.raises(InvalidRequest):
        extension.read_metadata({"deadline": seconds})


NAMES = {"agent": "planner", "run_id": "r-1", "call_id": "call_1_1"}


@pytest.mark.parametrize(
    "parent",
    [
        pytest.param("planner", id="no object"),
        pytest.param({**NAMES, "run_id": 7}, id="a number"),
        pytest.param({"agent": "planner"}, id="a name is missing"),
        pytest.param({**NAMES, "agent": "a\nb"}, id="two lines"),
        pytest.param({**NAMES, "call_id": "x" * 257}, id="too long"),
    ],
)
def test_a_parent_that_is_no_call_is_refused(parent: JSON) -> None:
    with pytest.raises(InvalidRequest, match="parent"):
        extension.read_metadata({"parent": parent})


@given(anything)
def test_nothing_that_is_sent_breaks_the_reader(value: JSON) -> None:
    for read in (extension.read_context, extension.read_metadata):
        try:
            read(value)
        except InvalidRequest as error:
            assert extension.URI in error.message  # noqa: PT017 - both outcomes are right


def test_whom_the_caller_works_for_is_one_short_line():
    value = extension.metadata_value(DelegationMetadata(subject="user:ada@example.com"))
    assert extension.read_metadata(value).subject == "user:ada@example.com"
    for subject in (5, ["user:ada"], "a\nb", "\x1b[2J", "x" * 513):
        with pytest.raises(InvalidRequest, match="`subject` must be one line"):
            extension.read_metadata({"subject": subject})
