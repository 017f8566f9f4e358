"""What happens below a run, as lines: set in by depth, each event once, whatever it holds."""

from typing import Any

import pytest

from diptych.cli.output.tree import TreeLines


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


def test_an_event_that_is_told_again_is_shown_once_and_gaps_are_named() -> None:
    twice = notice("tool_result", "4", seq=3, tool="sum")
    gap = notice("tool_result", "5", seq=9, tool="sum")
    gap["event"]["skipped"] = 5
    assert shown(twice, twice, gap) == [
        "  │ a  ✓ sum  4",
        "  │ … 5 events were not told",
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
