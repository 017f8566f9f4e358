"""Agents below that lie: about what they have used, what waits at them, and what is below them."""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import StreamingResponse
from support.hostile import serving
from support.hostile_peer import HostilePeer, event, status
from support.stack import Stage, agent, stages
from support.trees import delegates_to, recorded, said

from diptych.a2a import event_gate
from diptych.a2a.event_gate import MAX_APPROVAL_BYTES
from diptych.a2a.tree import MAX_NODES
from diptych.core.budget import Budget
from diptych.core.child_approvals import MAX_OPEN
from diptych.core.run_settings import RunSettings
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


def audited(caplog: pytest.LogCaptureFixture) -> list[Mapping[str, Any]]:
    lines = [r.getMessage() for r in caplog.records if r.name == "diptych.audit"]
    return [line for line in map(json.loads, lines) if "claimed" in line]


def replied(tokens: int) -> Any:
    return event("model_reply", 2, usage={"prompt_tokens": tokens, "completion_tokens": 0})


SHOWN = [replied(300)]
OVER = "claims more than it could use of what it was given"


@pytest.mark.parametrize(
    ("says", "claim", "counted", "why"),
    [
        pytest.param([], {"tokens": 10**9}, 2 * GIVEN, OVER, id="huge"),
        pytest.param([], {"tokens": 10**15}, GIVEN, "names amounts that are none", id="too huge"),
        pytest.param([], {"tokens": -(10**6)}, GIVEN, "names amounts that are none", id="negative"),
        pytest.param([], {"tokens": "all"}, GIVEN, "names amounts that are none", id="a word"),
        pytest.param([], ["much"], GIVEN, "names amounts that are none", id="a list"),
        pytest.param(SHOWN, {"tokens": 5}, 300, "claims less than its events show", id="less"),
        pytest.param(SHOWN, {"tokens": 400}, 400, "claims more than its events show", id="more"),
        pytest.param(SHOWN, {"tokens": 300, "model_calls": 1}, 300, "", id="the truth"),
        pytest.param(SHOWN, None, 300, "claims nothing, and its events show use", id="nothing"),
    ],
)
async def test_a_child_counts_for_what_it_could_use_at_most_and_for_what_it_shows_at_least(
    says: Any, claim: Any, counted: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    peer = HostilePeer(says, {"used": claim})
    async with asking(peer, loop=RunSettings(budget=Budget(tokens=TOKENS))) as top:
        run = await top.ended(await top.start())
        (result,) = [e for e in await top.memory() if e["event_type"] == "delegation_response"]
    assert result["metadata"]["child"]["used"]["tokens"] == counted
    model_calls = 3 if counted < GIVEN else 1
    assert run["budget"]["run"]["used"]["tokens"] == model_calls * OWN + counted
    assert [line["why"] for line in audited(caplog)] == [why] * bool(why)
    if why:
        (line,) = audited(caplog)
        assert (line["subject"], line["given"]) == ("agent evil", {"tokens": GIVEN})
        assert why in caplog.text


NAN, INFINITY = float("nan"), float("inf")  # on the wire as Python writes them


@pytest.mark.parametrize(
    "report",
    [
        pytest.param({"used": {"tokens": NAN}}, id="NaN"),
        pytest.param({"used": {"tokens": INFINITY}}, id="infinity"),
        pytest.param({"used": {"tokens": -INFINITY}}, id="less than nothing"),
        pytest.param({"used": {"tokens": 1e300}}, id="huge"),
        pytest.param({"used": {"tokens": "NaN"}}, id="a text"),
        pytest.param({"used": {"tokens": {}}}, id="an object"),
        pytest.param({"used": {"tokens": 1.5}}, id="a part of a token"),
        pytest.param({"used": {"tokens": True}}, id="a truth"),
        pytest.param({"used": {"tokens": 5, "cost": NAN}}, id="money that is none"),
        pytest.param({"used": {"tokens": 5, "cost": "1e5"}}, id="money with an exponent"),
        pytest.param({"usage": {"prompt_tokens": NAN, "completion_tokens": 1}}, id="usage"),
        pytest.param({"used": NAN}, id="not even an object"),
        pytest.param({"code": NAN}, id="another field"),
        pytest.param(NAN, id="no report"),
    ],
)
@pytest.mark.parametrize("before", [[], SHOWN], ids=["in silence", "after events"])
async def test_amounts_that_are_none_count_as_all_that_was_given(
    report: Any, before: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    peer = HostilePeer(before, report)
    async with asking(peer, loop=RunSettings(budget=Budget(tokens=TOKENS))) as top:
        run = await top.ended(await top.start())
        (result,) = [e for e in await top.memory() if e["event_type"].startswith("delegation_r")][
            1:
        ]
    assert (result["event_type"], result["metadata"]["child"]["state"]) == (
        "delegation_response",
        "completed",
    )
    assert run["budget"]["run"]["used"]["tokens"] == OWN + GIVEN
    assert [line["why"] for line in audited(caplog)] == ["names amounts that are none"]


EARLIER = {"used": {"tokens": 5}}


@pytest.mark.parametrize("before", [[], SHOWN, [EARLIER]], ids=["silence", "events", "a claim"])
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"result": "word"}, id="no object"),
        pytest.param({"result": {"task": {"id": 7}}}, id="a wrong type"),
        pytest.param({"error": {"code": -32000, "message": "no"}}, id="an error"),
        pytest.param({"result": status("WORKING", 10**400)}, id="more than a float holds"),
    ],
)
async def test_a_task_that_is_broken_off_counts_as_all_that_was_given(
    before: Any, broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    peer = HostilePeer(before, {"used": {"tokens": 1}}, breaks_off_with=broken)
    async with asking(peer, loop=RunSettings(budget=Budget(tokens=TOKENS))) as top:
        run = await top.ended(await top.start())
        (error,) = [e for e in await top.memory() if e["event_type"] == "delegation_error"]
    assert error["metadata"]["child"]["used"]["tokens"] == GIVEN
    assert run["budget"]["run"]["used"]["tokens"] == OWN + GIVEN
    assert ["broke off" in line["why"] for line in audited(caplog)] == [True]


async def test_a_task_that_asks_for_input_counts_for_what_it_has_shown() -> None:
    peer = HostilePeer(SHOWN, ends_as="INPUT_REQUIRED")
    async with asking(peer, loop=RunSettings(budget=Budget(tokens=TOKENS))) as top:
        run = await top.ended(await top.start())
    assert run["budget"]["run"]["used"]["tokens"] == 3 * OWN + 300


async def test_a_claim_counts_no_more_once_amounts_that_are_none_have_followed() -> None:
    peer = HostilePeer([EARLIER], {"used": {"tokens": NAN}})
    async with asking(peer, loop=RunSettings(budget=Budget(tokens=TOKENS))) as top:
        run = await top.ended(await top.start())
    assert run["budget"]["run"]["used"]["tokens"] == OWN + GIVEN


@pytest.mark.parametrize(
    "says",
    [
        pytest.param([], id="nothing is shown"),
        pytest.param([*SHOWN, event("delegation_request", 3)], id="children of its own"),
        pytest.param([*SHOWN, {"event": {"type": "?"}}], id="an event that cannot be read"),
        pytest.param(
            [*SHOWN, *(event("tool_result", n) for n in range(3, 20))],
            id="events that were dropped",
        ),
    ],
)
async def test_nobody_is_accused_where_not_all_was_shown(
    says: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(event_gate, "BURST", 5)
    monkeypatch.setattr(event_gate, "EVENTS_PER_SECOND", 0.0)
    peer = HostilePeer(says, {"used": {"tokens": 400}})
    async with asking(peer, loop=RunSettings(budget=Budget(tokens=TOKENS))) as top:
        await top.ended(await top.start())
    assert audited(caplog) == []


async def test_tokens_that_are_no_amount_count_as_all_that_was_given() -> None:
    usage = {"prompt_tokens": 2**63, "completion_tokens": 1}
    async with asking(
        HostilePeer([], {"usage": usage}), loop=RunSettings(budget=Budget(tokens=TOKENS))
    ) as top:
        run = await top.ended(await top.start())
    assert run["budget"]["run"]["used"]["tokens"] == OWN + GIVEN


async def test_tool_calls_that_are_shown_and_not_claimed_count() -> None:
    about = {"arguments": {}}
    says = [event("tool_call", n, {"tool": "pay", **about}, call_id=f"call_{n}") for n in (2, 3)]
    says.append(event("tool_call", 4, {"tool": "result__read", **about}, call_id="call_4"))
    async with asking(
        HostilePeer(says, {"used": {"tokens": 1}}),
        loop=RunSettings(budget=Budget(tokens=TOKENS, tool_calls=9)),
    ) as top:
        run = await top.ended(await top.start())
    assert run["budget"]["run"]["used"]["tool_calls"] == 2


async def test_tokens_that_are_claimed_without_a_price_cost_no_more_than_was_given() -> None:
    usage = {"prompt_tokens": 10**12, "completion_tokens": 10**12}
    async with asking(
        HostilePeer([], {"usage": usage}), loop=RunSettings(budget=Budget(tokens=TOKENS))
    ) as top:
        run = await top.ended(await top.start())
    assert run["budget"]["run"]["used"]["tokens"] == OWN + 2 * GIVEN


@pytest.mark.parametrize(("size", "most"), [(10, MAX_OPEN), (20_000, 208)])
async def test_calls_that_wait_below_are_bounded_in_number_and_bytes(size: int, most: int) -> None:
    call = {"tool": "pay", "arguments": {"text": "x" * size}}
    about = {"step": 1, "expires_at": 9e9, "reason": "x"}
    says = [
        event("approval_requested", n, call, call_id=f"call_{n}", **about) for n in range(1, 3_001)
    ]
    async with asking(HostilePeer(says)) as top:
        top.http.timeout = 60  # thousands of records are written, and read
        run_id = await top.start()
        assert (await top.ended(run_id))["status"] == "completed"
        events = await recorded(top, run_id)
    asked = [e for e in events if e["event_type"] == "approval_requested"]
    assert len(asked) == most
    assert len(json.dumps([e["content"] for e in asked])) <= MAX_APPROVAL_BYTES


def node(*below: Any, **fields: Any) -> dict[str, Any]:
    calls = [{"call_id": f"c{n}", "agent": "b", "run": each} for n, each in enumerate(below)]
    return {"run_id": "r", "status": "completed", "delegations": calls, **fields}


def count(run: Any) -> int:
    return 1 + sum(count(call["run"]) for call in run["delegations"] if "run" in call)


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
    assert found["problem"] in {"the agent's tree is too large", "the agent cannot be reached"}


async def test_a_tree_of_very_many_runs_is_cut() -> None:
    found = await tree_over(node(*(node(*(node() for _ in range(100))) for _ in range(100))))
    assert count(found["run"]) == MAX_NODES


async def test_a_tree_that_would_hide_those_beside_it_by_its_size_is_left_out() -> None:
    long = {"task": "x" * 2_000, "status": "x" * 2_000, "problem": "x" * 2_000}
    calls = [{"call_id": f"c{n}", "agent": "b", **long} for n in range(150)]
    found = await tree_over({**node({**node(), "delegations": calls}), "delegations": calls})
    assert "run" in found  # of 0.9 MB
    below = {"call_id": "c", "agent": "b", "run": {**node(), "delegations": calls}}
    found = await tree_over({**node(), "delegations": [below, *calls]})
    assert "run" not in found  # of 1.8 MB: with it, whoever asks this agent would get nothing
    assert found["problem"] == "the tree is too large to be shown whole"
