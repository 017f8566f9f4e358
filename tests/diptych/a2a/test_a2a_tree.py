"""A tree of runs that another agent gives is read, and bounded, whatever it holds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.a2a.tree import MAX_DELEGATIONS, MAX_NODES, MAX_TEXT_CHARS, read_tree

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def run(*below: Any, **fields: Any) -> dict[str, Any]:
    calls = [{"call_id": f"c{n}", "agent": "b", "run": each} for n, each in enumerate(below)]
    return {"run_id": "r", "status": "completed", "delegations": calls, **fields}


def count(node: Any) -> int:
    return 1 + sum(count(call["run"]) for call in node["delegations"] if "run" in call)


def test_what_is_asked_for_is_read_and_nothing_deeper() -> None:
    tree = run(run(run(run())), usage={"prompt_tokens": 3.0, "completion_tokens": 1})
    assert count(read_tree(tree, 5)) == 4
    assert count(read_tree(tree, 1)) == 2
    found: Any = read_tree(tree, 1)
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 1}


def test_a_tree_without_end_is_cut() -> None:
    wide = run(*(run(*(run() for _ in range(300))) for _ in range(300)))
    found: Any = read_tree(wide, 5)
    assert count(found) == MAX_NODES
    assert len(found["delegations"]) == MAX_DELEGATIONS


def test_long_texts_are_cut_and_strange_fields_left_out() -> None:
    found: Any = read_tree(run(status="x" * 10**6, code=7, evil="x", started_at=1e300), 5)
    assert len(found["status"]) == MAX_TEXT_CHARS
    assert not {"code", "evil"} & found.keys()
    assert found["started_at"] is None


@pytest.mark.parametrize("cost", ["-1", "1e400", "NaN", 5, "1" * 400, "0.1.2", None])
def test_money_that_is_none_counts_as_nothing(cost: Any) -> None:
    found: Any = read_tree(run(cost=cost, children_cost="0.25"), 5)
    assert (found["cost"], found["children_cost"]) == ("0", "0.25")


@given(anything)
def test_nothing_that_is_sent_breaks_the_reader(value: Any) -> None:
    read_tree(value, 5)
    strange = {"run_id": "r", "usage": value, "parent": value, "delegations": value}
    read_tree(strange, 5)
    read_tree({"run_id": "r", "delegations": [value, {"run": value, "child": value}]}, 5)
