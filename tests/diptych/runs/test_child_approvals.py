"""What the events of a child say of calls that wait, and what of that is believed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.decisions import may_take, take
from diptych.core.events import ChildApprovalDecided, ChildApprovalRequested
from diptych.core.messages import ChildRun, Delegation
from diptych.core.state import Run
from diptych.ports import ChildEvent
from diptych.runs.approvals import MAX_REASON_CHARS, child_approval

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
