"""A tree of runs as lines, with time and tokens of each branch."""

from typing import Any

from diptych.cli.output.tree_view import tree_view

NOTHING = {"prompt_tokens": 0, "completion_tokens": 0}


def run(*calls: Any, **fields: Any) -> dict[str, Any]:
    own = {"prompt_tokens": 10, "completion_tokens": 2}
    times = {"started_at": 100.0, "ended_at": 101.5, "status": "completed", "run_id": "r"}
    about = {**times, "usage": own, "children_usage": NOTHING, "delegations": list(calls)}
    return {**about, **fields}


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"agent": name, "task": "do it", "status": "completed", "started_at": 100.0, **fields}


def shown(tree: Any) -> list[str]:
    lines = tree_view(tree, 200, 110.0)
    return ["".join(p if isinstance(p, str) else p[0] for p in line) for line in lines]


def test_each_run_is_a_line_below_the_one_it_comes_from() -> None:
    failed = run(status="failed", code="model_cut")
    middle = run(call("d", run=failed), children_usage={"prompt_tokens": 5, "completion_tokens": 1})
    cut = call("c", ended_at=None, status="running", problem="the agent cannot be reached")
    assert shown(run(call("b", run=middle), cut, agent="a")) == [
        "a  completed  1.5 s  10 in, 2 out  r",
        "├─ b  completed  1.5 s  10 in, 2 out (with children 15 in, 3 out)  r  do it",
        "│  └─ d  failed (model_cut)  1.5 s  10 in, 2 out  r  do it",
        "└─ c  running  10.0 s  do it  ! the agent cannot be reached",
    ]


def test_money_is_shown_where_something_has_a_price() -> None:
    below = run(call("d", run=run(cost="0", children_cost="0")), cost="0.25", children_cost="0")
    top = run(call("b", run=below), agent="a", cost="0.5", children_cost="0.25")
    assert shown(top) == [
        "a  completed  1.5 s  10 in, 2 out  cost 0.5 (with children 0.75)  r",
        "└─ b  completed  1.5 s  10 in, 2 out  cost 0.25  r  do it",
        "   └─ d  completed  1.5 s  10 in, 2 out  r  do it",
    ]
