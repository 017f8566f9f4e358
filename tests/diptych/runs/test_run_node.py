"""A run as a node of the tree: what is counted as budgets count it."""

from diptych.budgets.recorded_use import recorded_use
from diptych.core.codec import Record
from diptych.runs.run_node import run_node

USAGE = {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}


def test_a_compaction_counts_as_a_model_call_as_it_does_for_budgets():
    said = [("user_message", {}), ("compacted", USAGE), ("model_reply", USAGE)]
    said.append(("compacted", {**USAGE, "error": "model_failed"}))
    records = [Record("r", "s", n, kind, 0.0, "", about) for n, (kind, about) in enumerate(said, 1)]
    assert run_node(records, "in_progress")["model_calls"] == 2
    assert recorded_use(records).model_calls == 2
