"""What happens below a run, as lines: set in by depth, each event once, whatever it holds."""

from typing import Any

import pytest

from diptych.cli.output.tree import TreeLines, tree_view


def notice(kind: str, content: Any = "", *path: str, seq: int = 0, **metadata: Any) -> Any:
    event = {"type": kind, "seq": seq, "timestamp": 1.0, "content": content, "metadata": metadata}
    return {"call_id": "c1", "target": "a", "path": ["c1", *path], "content": "", "event": event}


def shown(*notices: Any) -> list[str]:
    tree = TreeLines()
    lines = [line for fields in notices for line in tree.lines(fields, 80)]
    return ["".join(part if isinstance(part, str) else part[0] for part in line) for line in lines]


def test_each_agent_is_named_and_its_lines_are_set_in_by_depth() -> None:
    assert shown(
        notice("delegation_request", {"agent": "b", "task": "add"}, step=1, call_id="c2"),
        notice("tool_call", {"tool": "sum", "arguments": {"n": 1}}, "c2", step=1),
        notice("tool_error", "no luck", "c2", tool="sum"),
        notice("delegation_response", "4", agent="b"),
        notice("failed", "it broke", "c2"),
    ) == [
        "  │ a  ● step 1  → b: add",
        "  │ │ b  ● step 1  sum(n=1)",
        "  │ │ b  ✗ sum  no luck",
        "  │ a  ✓ b  4",
        "  │ │ b  ✗ failed: it broke",
    ]


def test_an_event_that_is_told_again_is_shown_once() -> None:
    twice = notice("tool_result", "4", seq=3, tool="sum")
    other = notice("tool_result", "5", seq=9, tool="sum")
    assert shown(twice, twice, other) == [
        "  │ a  ✓ sum  4",
        "  │ a  ✓ sum  5",
    ]


def test_the_answer_of_an_own_delegation_is_left_to_its_text() -> None:
    own = notice("agent_response", "told as text", seq=8)
    below = notice("agent_response", "told by nothing else", "c2", seq=8)
    (line,) = shown(own, below)
    assert line.endswith("told by nothing else")


def test_what_says_nothing_to_a_person_is_not_shown() -> None:
    assert shown(notice("model_reply"), notice("completed"), notice("user_message", "x")) == []


@pytest.mark.parametrize("content", [None, "x", 7, [1], {}, {"agent": []}])
def test_strange_contents_are_shown_somehow(content: Any) -> None:
    for kind in ("delegation_request", "tool_call", "tool_error", "approval_requested"):
        assert len(shown(notice(kind, content))) == 1


NOTHING = {"prompt_tokens": 0, "completion_tokens": 0}


def run(*calls: Any, **fields: Any) -> dict[str, Any]:
    own = {"prompt_tokens": 10, "completion_tokens": 2}
    times = {"started_at": 100.0, "ended_at": 101.5, "status": "completed", "run_id": "r"}
    about = {**times, "usage": own, "children_usage": NOTHING, "delegations": list(calls)}
    return {**about, **fields}


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"agent": name, "task": "do it", "status": "completed", "started_at": 100.0, **fields}


def test_each_run_is_a_line_below_the_one_it_comes_from_with_what_it_cost() -> None:
    failed = run(status="failed", code="model_cut", cost="0", children_cost="0")
    used = {"prompt_tokens": 5, "completion_tokens": 1}
    middle = run(call("d", run=failed), children_usage=used, cost="0.25")
    cut = call("c", ended_at=None, status="running", problem="the agent cannot be reached")
    top = run(call("b", run=middle), cut, agent="a", cost="0.5", children_cost="0.25")
    lines = tree_view(top, 200, 110.0)
    assert ["".join(p if isinstance(p, str) else p[0] for p in line) for line in lines] == [
        "a  completed  1.5 s  10 in, 2 out  cost 0.5 (with children 0.75)  r",
        "├─ b  completed  1.5 s  10 in, 2 out (with children 15 in, 3 out)  cost 0.25  r  do it",
        "│  └─ d  failed (model_cut)  1.5 s  10 in, 2 out  r  do it",
        "└─ c  running  10.0 s  do it  ! the agent cannot be reached",
    ]
