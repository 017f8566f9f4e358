"""Events of a task: what is written is read back, what is long is cut, all else is left out."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.a2a.events import (
    MAX_APPROVAL_BYTES,
    MAX_EVENT_BYTES,
    notice_event,
    read_event,
    record_event,
)
from diptych.core.codec import Record
from diptych.ports import ChildEvent, Notice

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
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
        pytest.param({"arguments": {"a": ["x" * 2**20]}}, id="a long argument"),
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


@given(anything)
def test_nothing_that_is_sent_breaks_the_reader(value: Any) -> None:
    read_event(value)
    read_event({"event": value})
    read_event({"event": {**GOOD, "content": value, "metadata": {"a": value}}})


@pytest.mark.parametrize(
    "changes",
    [
        {"type": 7},
        {"path": "call_1_1"},
        {"seq": "7"},
        {"metadata": "x"},
        {"content": "x" * 2 * MAX_APPROVAL_BYTES},
    ],
    ids=str,
)
def test_what_is_no_event_or_a_huge_one_is_left_out(changes: dict[str, Any]) -> None:
    assert read_event({"event": {**GOOD, **changes}}) is None
    assert read_event({"event": GOOD}) is not None
