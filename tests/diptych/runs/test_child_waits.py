"""What the events of a child say of calls that wait, and what of that is believed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.decisions import may_take, take
from diptych.core.events import (
    AskedBelow,
    ChildApprovalDecided,
    ChildApprovalRequested,
    InputReceived,
    InputRequest,
    InputRequested,
)
from diptych.core.messages import ChildRun, Delegation
from diptych.core.state import Run
from diptych.ports import ChildEvent
from diptych.runs.approvals import MAX_REASON_CHARS, child_approval
from diptych.runs.inputs import child_input

CALL = Delegation("call_1_1", "planner", "plan")
CHILD = ChildRun("http://planner", "r-2")
PAY: Any = {"tool": "pay", "arguments": {"amount": 5}}
ASKED: dict[str, Any] = {"call_id": "call_2_1", "step": 2, "expires_at": 100.0, "reason": "money"}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def seen(kind: str, content: Any, about: Any, *path: str) -> Any:
    return child_approval(CALL, CHILD, ChildEvent(kind, path, 3, 1.0, content, about))


def test_a_call_that_waits_is_known_by_the_path_to_it() -> None:
    assert seen("approval_requested", PAY, ASKED) == ChildApprovalRequested(
        ("call_1_1", "call_2_1"), PAY, 2, "money", 100.0, "planner", "http://planner", "r-2"
    )
    deeper = seen("approval_requested", PAY, {**ASKED, "call_id": "call_2_1.call_1_3"})
    assert deeper.path == ("call_1_1", "call_2_1", "call_1_3")


def test_what_was_decided_below_does_not_wait_again_when_it_is_told_again() -> None:
    run = Run(calls=(CALL,), started=frozenset({CALL.id}))
    asked = seen("approval_requested", PAY, ASKED)
    assert may_take(run, asked)
    waiting = take(run, asked)
    decided = seen("approval_decided", "reject", {"call_id": "call_2_1"})
    assert may_take(waiting, decided)
    assert not may_take(take(waiting, decided), asked)


def test_only_the_child_itself_says_what_waits_below_it() -> None:
    assert seen("approval_requested", PAY, ASKED, "call_9_9") is None


def test_decisions_and_results_close_it() -> None:
    path = ("call_1_1", "call_2_1")
    about = {"call_id": "call_2_1", "decision_id": "d", "reason": "no", "subject": "user:eve"}
    assert seen("approval_decided", "reject", about) == ChildApprovalDecided(
        path, "reject", "d", "no", subject="user:eve"
    )
    edited = seen("approval_decided", "edit", {**about, "call": PAY})
    assert edited.content == PAY
    for kind in ("tool_error", "tool_result", "delegation_error"):
        assert seen(kind, "x", {"call_id": "call_2_1"}) == ChildApprovalDecided(path, "closed")
    assert seen("tool_call", PAY, {"call_id": "call_2_1"}) is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"call_id": None}, id="no call"),
        pytest.param({"call_id": "../x"}, id="an id that is none"),
        pytest.param({"call_id": ".".join("abcdefghi")}, id="too deep"),
        pytest.param({"step": "2"}, id="a step that is no number"),
        pytest.param({"expires_at": None}, id="no end"),
        pytest.param({"expires_at": -1}, id="an end before all time"),
        pytest.param({"expires_at": 1e300}, id="an end that never comes"),
        pytest.param({"expires_at": float("nan")}, id="an end that is no time"),
    ],
)
def test_what_is_no_approval_is_left_out(changes: dict[str, Any]) -> None:
    assert seen("approval_requested", PAY, {**ASKED, **changes}) is None


@pytest.mark.parametrize(
    "content", [None, "pay", {"tool": 7, "arguments": {}}, {"tool": "pay"}, {"agent": "a"}]
)
def test_what_nobody_could_judge_is_left_out(content: Any) -> None:
    assert seen("approval_requested", content, ASKED) is None


def test_long_reasons_are_cut_and_strange_decisions_left_out() -> None:
    asked = seen("approval_requested", PAY, {**ASKED, "reason": "x" * 10**6})
    assert len(asked.reason) == MAX_REASON_CHARS
    assert seen("approval_decided", "explode", {"call_id": "call_2_1"}) is None
    assert seen("approval_decided", 7, {"call_id": "call_2_1"}) is None


@given(anything, anything)
def test_nothing_that_is_sent_breaks_it(content: Any, value: Any) -> None:
    for kind in ("approval_requested", "approval_decided"):
        seen(kind, content, dict.fromkeys(ASKED, value) | {"call_id": "call_2_1"})
        seen(kind, content, {"call_id": value, "call": value, "decision_id": value})
    for kind in ("input_requested", "input_received"):
        asked(kind, content, dict.fromkeys({**QUESTION, "schema": 0, "url": 0}, value))
        asked(kind, "accept", {"call_id": "call_2_1", "kind": "form", "schema": value})


# Questions


QUESTION: dict[str, Any] = {"call_id": "call_2_1", "kind": "form", "expires_at": 100.0}
SCHEMA = {"type": "object"}


def asked(kind: str, content: Any, about: Any, *path: str, seq: int = 3) -> Any:
    return child_input(CALL, CHILD, ChildEvent(kind, path, seq, 1.0, content, about))


def test_a_question_is_known_by_the_path_to_it_and_ends_with_its_answer_or_call() -> None:
    about = {**QUESTION, "schema": SCHEMA}
    assert asked("input_requested", "Sure?", about) == InputRequested(
        "call_1_1.call_2_1",
        InputRequest("form", "Sure?", SCHEMA),
        100.0,
        below=AskedBelow("planner", "http://planner", "r-2", 3),
    )
    answer = {"call_id": "call_2_1", "input_id": "i", "subject": "user:eve", "private": {}}
    assert asked("input_received", "decline", answer, seq=4) == InputReceived(
        "call_1_1.call_2_1", "decline", "i", 4, subject="user:eve"
    )
    for kind, content in (("tool_result", "x"), ("input_received", "closed")):
        closed = InputReceived("call_1_1.call_2_1", "closed", "", 5)
        assert asked(kind, content, {"call_id": "call_2_1"}, seq=5) == closed


@pytest.mark.parametrize(
    ("content", "changes", "path", "seq"),
    [
        pytest.param("?", {}, ("call_9_9",), 3, id="of a run further down"),
        pytest.param("?", {}, (), 0, id="without a record"),
        pytest.param(5, {}, (), 3, id="no message"),
        pytest.param("?", {"call_id": "../x"}, (), 3, id="an id that is none"),
        pytest.param("?", {"kind": "password"}, (), 3, id="an unknown kind"),
        pytest.param("?", {"kind": "caller_tool"}, (), 3, id="of a tool of ours"),
        pytest.param("?", {"kind": []}, (), 3, id="a kind that is none"),
        pytest.param("?", {"kind": "caller_tool"}, (), 3, id="a caller's tool, which it has not"),
        pytest.param("?", {"url": 5}, (), 3, id="a url that is none"),
        pytest.param("?", {"schema": {"type": 5}}, (), 3, id="a schema that is none"),
        pytest.param("?", {"schema": {"title": "x" * 40_000}}, (), 3, id="a schema too long"),
        pytest.param("?", {"expires_at": float("nan")}, (), 3, id="an end that is no time"),
    ],
)
def test_what_is_no_question_is_left_out(content: Any, changes: Any, path: Any, seq: int) -> None:
    assert asked("input_requested", content, {**QUESTION, **changes}, *path, seq=seq) is None
    assert asked("input_received", "explode", QUESTION) is None
