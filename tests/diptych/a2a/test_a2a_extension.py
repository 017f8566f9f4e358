"""The delegation extension, and the events of a task: what is written is read back."""

from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.a2a import extension
from diptych.a2a.events import MAX_EVENT_BYTES, notice_event, read_event, record_event
from diptych.a2a.extension import DelegationMetadata
from diptych.core.budget import Budget
from diptych.core.codec import Record
from diptych.core.errors import InvalidRequest
from diptych.core.messages import JSON, Message, ParentCall
from diptych.ports import ChildEvent, Notice

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES: dict[str, Any] = {"agent": "planner", "run_id": "r-1", "call_id": "call_1_1"}


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


@given(anything)
def test_nothing_that_is_sent_breaks_the_reader(value: JSON) -> None:
    for read in (extension.read_context, extension.read_metadata):
        try:
            read(value)
        except InvalidRequest as error:
            assert extension.URI in error.message  # noqa: PT017 - both outcomes are right
    read_event(value)
    read_event({"event": value})
    read_event({"event": {**GOOD, "content": value, "metadata": {"a": value}}})


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


# Events


GOOD: dict[str, Any] = {
    "type": "tool_call",
    "path": ["call_1_1"],
    "seq": 3,
    "timestamp": 1.5,
    "content": None,
    "metadata": {},
}


def record(event_type: str, content: Any = None, **metadata: Any) -> Record:
    return Record("r-1", "s-1", 3, event_type, 1.5, content, metadata)


def test_a_record_comes_back_as_an_event_without_what_callers_are_not_told() -> None:
    call = record("tool_call", {"tool": "add", "arguments": {"a": 1}}, call_id="c", value="big")
    assert read_event(record_event(call)) == ChildEvent(
        "tool_call", (), 3, 1.5, {"tool": "add", "arguments": {"a": 1}}, {"call_id": "c"}
    )


def test_offers_text_and_what_a_model_said_between_are_not_told() -> None:
    assert record_event(record("offered", "key")) is None
    assert record_event(record("text", "Hel")) is None
    told = read_event(record_event(record("model_reply", "I think", usage={"prompt_tokens": 1})))
    assert told is not None
    assert told.content == ""
    assert told.metadata == {"usage": {"prompt_tokens": 1}}


def test_events_and_text_of_children_go_on_with_their_path() -> None:
    inner = {"type": "tool_result", "seq": 7, "timestamp": 2.0, "content": "4", "metadata": {}}
    fields = {"call_id": "c1", "target": "t", "path": ["c1", "c2"], "content": "", "event": inner}
    told = read_event(notice_event(Notice("delegation_progress", fields)))
    assert told == ChildEvent("tool_result", ("c1", "c2"), 7, 2.0, "4")
    text = {"call_id": "c1", "target": "t", "path": ["c1"], "content": "Hel"}
    assert read_event(notice_event(Notice("delegation_progress", text))) == ChildEvent(
        "text", ("c1",), content="Hel"
    )
    assert notice_event(Notice("reasoning", {"content": "Hm"})) is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("x" * 2**20, id="a long text"),
        pytest.param({"arguments": {str(n): "x" * 1000 for n in range(500)}}, id="many arguments"),
        pytest.param({"arguments": {"a": list(range(10**5))}}, id="a long list"),
    ],
)
def test_what_is_long_is_cut_and_still_told(content: Any) -> None:
    event = record_event(record("tool_call", content, call_id="c"))
    assert len(orjson.dumps(event)) < MAX_EVENT_BYTES + 1_000
    told = read_event(event)
    assert told is not None
    assert told.metadata["call_id"] == "c"
