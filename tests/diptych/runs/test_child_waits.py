"""What the events of a child say of calls that wait, and what of that is believed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.events import ChildAnswered, ChildAsked
from diptych.core.messages import ChildRun, Delegation
from diptych.ports import ChildEvent
from diptych.runs.waits import MAX_TEXT_CHARS, child_waits

CALL = Delegation("call_1_1", "planner", "plan")
CHILD = ChildRun("http://planner", "r-2")
CALL_ID = "call_1_1.call_2_1"
PAY: Any = {"tool": "pay", "arguments": {"amount": 5}}
APPROVAL: dict[str, Any] = {"call_id": "call_2_1", "step": 2, "expires_at": 100.0, "reason": "so"}
QUESTION: dict[str, Any] = {"call_id": "call_2_1", "kind": "form", "expires_at": 100.0}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def seen(kind: str, content: Any, about: Any, *path: str, seq: int = 3) -> Any:
    return [*child_waits(CALL, CHILD, ChildEvent(kind, path, seq, 1.0, content, about))]


@pytest.mark.parametrize(
    ("kind", "content", "about", "said"),
    [
        ("approval", PAY, APPROVAL, {"step": 2, "reason": "so"}),
        ("input", "Sure?", {**QUESTION, "schema": {}}, {"kind": "form", "schema": {}}),
        ("input", "There?", {**QUESTION, "kind": "url", "url": "u"}, {"kind": "url", "url": "u"}),
    ],
)
def test_a_call_that_waits_is_known_by_the_path_to_it(
    kind: Any, content: Any, about: Any, said: Any
) -> None:
    task = ("planner", "http://planner", "r-2", 3)
    assert seen(f"{kind}_requested", content, {**about, "more": 1}) == [
        ChildAsked(kind, CALL_ID, content, said, 100.0, *task)
    ]
    deeper = seen(f"{kind}_requested", content, {**about, "call_id": "call_2_1.call_1_3"})
    assert [asked.call_id for asked in deeper] == [f"{CALL_ID}.call_1_3"]


def test_answers_and_results_close_it() -> None:
    about = {"call_id": "call_2_1", "decision_id": "d", "reason": "no", "subject": "user:eve"}
    shown = {"decision_id": "d", "reason": "no", "subject": "user:eve"}
    assert seen("approval_decided", "edit", {**about, "call": PAY, "caller": "agent:x"}) == [
        ChildAnswered("approval", CALL_ID, 3, "edit", {**shown, "call": PAY})
    ]
    about = {"call_id": "call_2_1", "input_id": "i", "is_expired": True, "private": {"content": {}}}
    assert seen("input_received", "cancel", about) == [
        ChildAnswered("input", CALL_ID, 3, "cancel", {"input_id": "i", "is_expired": True})
    ]
    for kind in ("tool_error", "tool_result", "delegation_error"):
        closed = [ChildAnswered(each, CALL_ID, 3) for each in ("approval", "input")]
        assert seen(kind, "x", {"call_id": "call_2_1"}) == closed
    closed = [ChildAnswered("input", CALL_ID, 3)]
    assert seen("input_received", "closed", {"call_id": "call_2_1"}) == closed
    assert seen("tool_call", PAY, {"call_id": "call_2_1"}) == []


@pytest.mark.parametrize(("kind", "content"), [("approval", PAY), ("input", "?")])
@pytest.mark.parametrize(
    ("changes", "path", "seq"),
    [
        pytest.param({}, ("call_9_9",), 3, id="of a run further down"),
        pytest.param({}, (), 0, id="without a record"),
        pytest.param({"call_id": None}, (), 3, id="no call"),
        pytest.param({"call_id": "../x"}, (), 3, id="an id that is none"),
        pytest.param({"call_id": ".".join("abcdefghi")}, (), 3, id="too deep"),
        pytest.param({"expires_at": None}, (), 3, id="no end"),
        pytest.param({"expires_at": -1}, (), 3, id="an end before all time"),
        pytest.param({"expires_at": 1e300}, (), 3, id="an end that never comes"),
        pytest.param({"expires_at": float("nan")}, (), 3, id="an end that is no time"),
    ],
)
def test_what_is_no_wait_is_left_out(
    kind: str, content: Any, changes: Any, path: Any, seq: int
) -> None:
    about = {**APPROVAL, **QUESTION, **changes}
    assert seen(f"{kind}_requested", content, about, *path, seq=seq) == []


@pytest.mark.parametrize(
    ("content", "changes"),
    [
        *[(each, {}) for each in (None, "pay", {"tool": 7, "arguments": {}}, {"tool": "pay"})],
        ({"agent": "a"}, {}),
        (PAY, {"step": "2"}),
    ],
)
def test_what_nobody_could_judge_is_left_out(content: Any, changes: Any) -> None:
    assert seen("approval_requested", content, {**APPROVAL, **changes}) == []


@pytest.mark.parametrize(
    ("content", "changes"),
    [
        pytest.param(5, {}, id="no message"),
        pytest.param("?", {"kind": "password"}, id="an unknown kind"),
        pytest.param("?", {"kind": "caller_tool"}, id="a caller's tool, which it has not"),
        pytest.param("?", {"kind": []}, id="a kind that is none"),
        pytest.param("?", {"url": 5}, id="a url that is none"),
        pytest.param("?", {"schema": {"type": 5}}, id="a schema that is none"),
        pytest.param("?", {"schema": {"title": "x" * 40_000}}, id="a schema too long"),
    ],
)
def test_what_is_no_question_is_left_out(content: Any, changes: Any) -> None:
    assert seen("input_requested", content, {**QUESTION, **changes}) == []


def test_long_reasons_are_cut_and_strange_answers_left_out() -> None:
    [asked] = seen("approval_requested", PAY, {**APPROVAL, "reason": "x" * 10**6})
    assert len(asked.about["reason"]) == MAX_TEXT_CHARS
    for answer in ("explode", "accept", 7):
        assert seen("approval_decided", answer, APPROVAL) == []
    for answer in ("explode", "approve", 7):
        assert seen("input_received", answer, QUESTION) == []


@given(anything, anything)
def test_nothing_that_is_sent_breaks_it(content: Any, value: Any) -> None:
    for kind in ("approval_requested", "approval_decided", "input_requested", "input_received"):
        for said in (content, PAY, "accept", "approve"):
            fields = dict.fromkeys({**APPROVAL, **QUESTION, "schema": 0, "url": 0}, value)
            seen(kind, said, fields | {"call_id": "call_2_1"})
            seen(kind, said, {**QUESTION, "schema": value, "call": value, "decision_id": value})
            seen(kind, said, {"call_id": value})
