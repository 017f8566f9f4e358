"""Agents below that lie: about what they have used, what waits at them, and what is below them.

Children are trusted; what a lie can cost is bounded all the same.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import StreamingResponse
from support.hostile import serving
from support.hostile_peer import HostilePeer, event
from support.stack import Stage, agent, stages
from support.trees import delegates_to, recorded, said

from diptych.a2a import delegation
from diptych.core.budget import Budget
from diptych.core.run_settings import RunSettings
from diptych.core.waiting import MAX_OPEN
from diptych.manifest.settings import PeerConfig

pytestmark = pytest.mark.long

TOKENS, OWN = 1_000, 12  # of the run, and of its own first model call
GIVEN = TOKENS - OWN


@asynccontextmanager
async def asking(peer: HostilePeer, **fields: Any) -> AsyncIterator[Stage]:
    """Serve an agent that delegates to such a peer, once."""
    async with serving(peer.app()) as url:
        peers = (PeerConfig("evil", url, share_context=True),)
        replies = (said(delegates_to("evil")), said("{}"), said("Done."))
        async with stages(agent(*replies, name="top", agents=peers, **fields)) as (top,):
            yield top


async def used_by_the_child(peer: HostilePeer, own_calls: int) -> int:
    """Give the tokens that a run has used beside those of its own model calls."""
    async with asking(peer, loop=RunSettings(budget=Budget(tokens=TOKENS))) as top:
        run = await top.ended(await top.start())
    used: int = run["budget"]["run"]["used"]["tokens"]
    return used - own_calls * OWN


@pytest.mark.parametrize(
    ("report", "own_calls", "counted"),
    [
        ({"used": {"tokens": 300}}, 3, 300),
        ({"used": {"tokens": 10**9}}, 1, 2 * GIVEN),
        ({"usage": {"prompt_tokens": 10**12, "completion_tokens": 10**12}}, 1, 2 * GIVEN),
        ({"used": {"tokens": -(10**6)}}, 3, 0),
        (float("inf"), 3, 0),
    ],
)
async def test_a_child_counts_for_what_it_says_up_to_what_it_was_given(
    report: Any, own_calls: int, counted: int
) -> None:
    assert await used_by_the_child(HostilePeer([], report), own_calls) == counted


@pytest.mark.parametrize(
    "broken", [{"result": {"task": {"id": 7}}}, {"error": {"code": -32000, "message": "no"}}]
)
async def test_a_task_that_is_broken_off_counts_as_all_that_was_given(broken: Any) -> None:
    peer = HostilePeer([{"used": {"tokens": 5}}], breaks_off_with=broken)
    assert await used_by_the_child(peer, 1) == GIVEN


async def test_calls_that_wait_below_and_events_are_bounded_in_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delegation, "MAX_EVENTS", 1_500)
    call = {"tool": "pay", "arguments": {"text": "x"}}
    about = {"step": 1, "expires_at": 9e9, "reason": "x"}
    says = [event("approval_requested", n, call, call_id=f"c_{n}", **about) for n in range(1, 1401)]
    says += [event("tool_call", n, call) for n in range(1_401, 1_601)]
    async with asking(HostilePeer(says)) as top:
        top.http.timeout = 60
        run_id = await top.start()
        notices = (await top.http.get(f"/v1/runs/{run_id}/events")).text
        assert (await top.ended(run_id))["status"] == "completed"
        events = await recorded(top, run_id)
    assert len([e for e in events if e["event_type"] == "approval_requested"]) == MAX_OPEN
    assert notices.count('"type":"tool_call","seq":') <= 100


def node(*below: Any, **fields: Any) -> dict[str, Any]:
    calls = [{"call_id": f"c{n}", "agent": "b", "run": each} for n, each in enumerate(below)]
    return {"run_id": "r", "status": "completed", "delegations": calls, **fields}


async def tree_over(tree: Any) -> Any:
    async with asking(HostilePeer(tree=tree)) as top:
        run_id = await top.start()
        await top.ended(run_id)
        reply = await top.http.get(f"/v1/runs/{run_id}/tree")
        assert reply.status_code == 200
        (delegation,) = reply.json()["delegations"]
        return delegation


async def test_a_tree_of_a_million_runs_is_not_read() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"run_id": "r", "delegations": ['
        for _ in range(1_000_000):
            yield b'{"call_id": "c", "agent": "b", "run": {"run_id": "r"}},'

    found = await tree_over(StreamingResponse(endless(), media_type="application/json"))
    assert "run" not in found
    # By its length, or before, by what holding so many pieces takes.
    assert found["problem"] in {
        "the agent gave no tree, or one that is too large",
        "the agent cannot be reached",
    }


async def test_a_tree_that_would_hide_those_beside_it_by_its_size_is_left_out() -> None:
    long = {"task": "x" * 2_000, "status": "x" * 2_000, "problem": "x" * 2_000}
    calls = [{"call_id": f"c{n}", "agent": "b", **long} for n in range(150)]
    found = await tree_over({**node({**node(), "delegations": calls}), "delegations": calls})
    assert "run" in found  # of 0.9 MB
    below = {"call_id": "c", "agent": "b", "run": {**node(), "delegations": calls}}
    found = await tree_over({**node(), "delegations": [below, *calls]})
    assert "run" not in found  # of 1.8 MB: with it, whoever asks this agent would get nothing
    assert found["problem"] == "the tree is too large to be shown whole"
