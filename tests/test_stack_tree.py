"""A tree of agents, each served on loopback: what each record says of the others."""

import asyncio
from typing import Any

import pytest
from support.stack import Stage, box, call, until
from support.trees import chain, differences, said, told, tree_of


async def broken() -> str:
    """Break."""
    raise RuntimeError("the crane fell over")


async def hangs() -> str:
    """Wait for ever."""
    await asyncio.sleep(60)
    return ""


async def records(stage: Stage, event_type: str) -> list[dict[str, Any]]:
    return [event for event in await stage.memory() if event["event_type"] == event_type]


async def test_each_record_names_the_run_above_and_the_run_below() -> None:
    async with chain(said("{}"), said("Leaf.")) as (top, middle, leaf):
        run_id = await top.start()
        run = await top.ended(run_id)
        assert run["status"] == "completed"
        assert run["usage"] == {"prompt_tokens": 30, "completion_tokens": 6}
        (down,) = await records(top, "delegation_response")
        child = down["metadata"]["child"]
        assert child["usage"] == run["children_usage"]
        assert child["usage"] == {"prompt_tokens": 50, "completion_tokens": 10}
        (asked,) = await records(middle, "user_message")
        assert child["url"] == middle.url
        assert child["task_id"] == asked["run_id"]
        assert child["state"] == "completed"
        parent = {"agent": top.name, "run_id": run_id, "call_id": down["metadata"]["call_id"]}
        assert asked["metadata"]["parent"] == parent
        (below,) = await records(middle, "delegation_response")
        assert below["metadata"]["child"]["url"] == leaf.url


FAULTS = [
    pytest.param([said(call("broken")), said("{}"), said("Leaf.")], {}, id="error in a leaf"),
    pytest.param([said("{}"), said("Half", finish_reason="length")], {}, id="cut answer"),
    pytest.param([said(call("hangs")), said("{}"), said("Leaf.")], {"deadline": 0.5}, id="timeout"),
]


@pytest.mark.parametrize(("leaf", "fields"), FAULTS)
async def test_what_the_tops_caller_is_told_is_what_is_on_each_record(leaf, fields) -> None:
    async with chain(*leaf, depth=4, tools=(box(broken, hangs),), **fields) as served:
        run_id = await served[0].start()
        seen = await told(served[0], run_id)
        records = await tree_of(served, run_id)
        assert len(records) == 3
        assert differences(seen, records) == []


async def test_a_tree_of_runs_is_read_from_the_top_over_all_agents() -> None:
    async with chain(said("{}"), said("Leaf."), depth=4) as served:
        run_id = await served[0].start()
        await served[0].ended(run_id)
        node = (await served[0].http.get(f"/v1/runs/{run_id}/tree")).json()
        names, spent = [], []
        while True:
            names.append((node["agent"], node["run_id"]))
            spent.append(node["usage"]["prompt_tokens"] + node["children_usage"]["prompt_tokens"])
            if not node["delegations"]:
                break
            (delegation,) = node["delegations"]
            assert delegation["child"]["task_id"] == delegation["run"]["run_id"]
            assert delegation["ended_at"] >= delegation["started_at"]
            node = delegation["run"]
        runs = [(await stage.http.get("/v1/runs")).json()["data"][0]["id"] for stage in served]
        assert names == [(stage.name, run) for stage, run in zip(served, runs, strict=True)]
        assert spent == [110, 80, 50, 20]
        shallow = (await served[0].http.get(f"/v1/runs/{run_id}/tree?depth=1")).json()
        assert "run" not in shallow["delegations"][0]["run"]["delegations"][0]
        own = (await served[0].http.get(f"/v1/runs/{run_id}/tree?depth=0")).json()
        assert "run" not in own["delegations"][0]
        assert (await served[0].http.get("/v1/runs/nobody/tree")).status_code == 404
        assert (await served[0].http.get(f"/v1/runs/{run_id}/tree?depth=6")).status_code == 400


async def test_a_tree_shows_what_still_runs() -> None:
    async with chain(said(call("hangs")), depth=3, tools=(box(hangs),)) as served:
        run_id = await served[0].start()

        async def at_the_leaf() -> bool:
            tree = (await served[0].http.get(f"/v1/runs/{run_id}/tree")).json()
            middle = tree["delegations"][0]["run"] if tree["delegations"] else {}
            below = middle.get("delegations", ())
            return bool(below) and below[0].get("run", {}).get("tool_calls") == 1

        await until(at_the_leaf)
        await served[0].http.post(f"/v1/runs/{run_id}/cancel")
