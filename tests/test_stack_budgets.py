"""Budgets of agents that are served: what callers see, and what goes down to sub-agents and up."""

import json
from decimal import Decimal
from typing import Any

import pytest
from support.stack import Stage, agent, box, call, frames, stage, stages, until
from support.trees import delegates_to

from diptych.a2a.extension import read_metadata
from diptych.core.budget import Budget, Prices, SharedBudgets
from diptych.core.errors import InvalidRequest
from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import PeerConfig

PRICES = Prices(Decimal(1), Decimal(2))
WORKERS = ("ada", "ben", "cyd")


def said(content: str, tokens: int = 100, **fields: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens - 10, "completion_tokens": 10}
    return {"content": content, "usage": usage, **fields}


async def echo(n: int) -> str:
    """Echo a number."""
    return f"{n}!"


def limited(prices: Prices | None = None, **limits: Any) -> RunSettings:
    return RunSettings(9, budget=Budget(**limits), prices=prices)


async def test_a_run_shows_what_is_used_and_left() -> None:
    replies = (said(call("echo", n=1)), said("{}"), said("Done."))
    loop = limited(PRICES, tokens=1_000, tool_calls=5, cost=Decimal("0.5"))
    async with stage(*replies, tools=(box(echo),), loop=loop) as one:
        run = await one.ended(await one.start(budget={"tool_calls": 2}))
        assert run["budget"] == {
            "run": {
                "used": {"tokens": 300, "cost": "0.00033", "tool_calls": 1},
                "limits": {"tokens": 1_000, "cost": "0.5", "tool_calls": 2},
                "left": {"tokens": 700, "cost": "0.49967", "tool_calls": 1},
            }
        }
        metrics = (await one.http.get("/metrics")).text
        assert "diptych_cost_total 0.00033" in metrics


async def test_a_budget_of_session_and_day_shows_too() -> None:
    budgets = SharedBudgets(Budget(model_calls=10), Budget(tokens=500))
    async with stage(said("{}"), said("Hi."), budgets=budgets) as one:
        run = await one.ended(await one.start())
        assert run["budget"]["session"]["left"] == {"model_calls": 8}
        assert run["budget"]["day"]["used"] == {"tokens": 200}
        assert (await one.ended(await one.start()))["budget"]["day"]["left"] == {"tokens": 100}
        metrics = (await one.http.get("/metrics")).text
        assert 'diptych_budget_used_ratio{limit="tokens"} 0.8' in metrics


@pytest.mark.parametrize(
    ("budget", "param"),
    [
        ({"tokens": 2_000}, "budget.tokens"),
        ({"cost": "0.5"}, "budget.cost"),
        ({"cost": "abc"}, "budget.cost"),
        ({"euros": 1}, "budget.euros"),
    ],
)
async def test_a_request_can_only_tighten(budget: Any, param: str) -> None:
    async with stage(said("{}"), said("Hi."), loop=limited(tokens=1_000)) as one:
        refused = await one.http.post("/v1/runs", json={"input": "hi", "budget": budget})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param


async def test_a_chat_gets_a_429_that_no_client_repeats() -> None:
    async with stage(said("{}"), said("Hi."), loop=limited(tokens=100)) as one:
        failed = await one.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
        )
        assert failed.status_code == 429
        assert failed.headers["x-should-retry"] == "false"
        assert failed.json()["error"]["code"] == "budget_exhausted"
        assert failed.json()["error"]["type"] == "insufficient_quota"
        assert 'diptych_failed_runs_total{code="budget_exhausted"} 1.0' in (
            (await one.http.get("/metrics")).text
        )


async def test_a_chat_stream_is_warned_by_a_valid_chunk() -> None:
    async with stage(said("{}"), said("Hi."), loop=limited(tokens=120)) as one:
        told = frames((await one.chat(stream=True)).text)
        warned = next(f for f in told if f.event == "progress")
        chunk = json.loads(warned.data)
        assert chunk["type"] == "budget_warning"
        assert chunk["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        assert (chunk["budget"], chunk["used"], chunk["limit"]) == ("budget.tokens", 100, 120)


def coordinator(left: int, *replies: Any, **limits: Any) -> Any:
    """A coordinator that has used 100 tokens when it asks its three workers at once."""
    asked = "[" + ", ".join(delegates_to(name, f"task of {name}") for name in WORKERS) + "]"
    return agent(
        said(asked),
        *(replies or (said("{}"), said("All done."))),
        name="boss",
        loop=limited(tokens=left + 100, **limits),
        agents=tuple(PeerConfig(name, name, share_context=True) for name in WORKERS),
    )


def worker(name: str, *replies: Any, **fields: Any) -> Any:
    return agent(*replies, name=name, tools=(box(echo),), **fields)


async def test_three_workers_spend_together_what_is_left_and_the_caller_sees_who_spent_what() -> (
    None
):
    endless = [said(call("echo", n=n)) for n in range(9)]
    loop = RunSettings(20)
    workers = [worker(name, *endless, loop=loop) for name in WORKERS]
    async with stages(coordinator(1_000), *workers) as (boss, *others):
        run = await boss.ended(await boss.start())
        ends = [e for e in await boss.memory() if e["event_type"] == "delegation_error"]
        spent = {e["metadata"]["agent"]: e["metadata"]["child"]["usage"] for e in ends}
        assert sorted(spent) == list(WORKERS)
        totals = [usage["prompt_tokens"] + usage["completion_tokens"] for usage in spent.values()]
        assert totals == [400, 400, 400]  # each 333, and over by one call at most
        assert {e["metadata"]["child"]["code"] for e in ends} == {"budget_exhausted"}
        assert run["error"]["code"] == "budget_exhausted"
        assert run["budget"]["run"]["used"] == {"tokens": 1_300}
        for other in others:
            (asked,) = [e for e in await other.memory() if e["event_type"] == "user_message"]
            assert asked["metadata"]["budget"]["tokens"] in (333, 334)


async def test_a_grandchild_counts_at_the_top() -> None:
    leaf = agent(said("{}"), said("Leaf."), name="leaf")
    peer = (PeerConfig("leaf", "leaf", share_context=True),)
    middle = agent(
        *(said(delegates_to("leaf")), said("{}"), said("Middle.")), name="middle", agents=peer
    )
    peer = (PeerConfig("middle", "middle", share_context=True),)
    top = agent(
        *(said(delegates_to("middle")), said("{}"), said("Top.")),
        name="top",
        agents=peer,
        loop=limited(tokens=10_000, model_calls=50),
    )
    async with stages(top, middle, leaf) as (first, *_):
        run = await first.ended(await first.start())
        assert run["budget"]["run"]["used"] == {"tokens": 800, "model_calls": 8}


async def test_a_delegation_gets_half_of_what_is_left_of_a_day() -> None:
    boss = agent(
        *(said(delegates_to("ada")), said("{}"), said("Done.")),
        name="boss",
        budgets=SharedBudgets(per_day=Budget(tokens=900)),
        agents=(PeerConfig("ada", "ada", share_context=True),),
    )
    ada = worker("ada", *[said(call("echo", n=n)) for n in range(9)], loop=RunSettings(20))
    async with stages(boss, ada) as (first, second):
        run = await first.ended(await first.start())
        (asked,) = [e for e in await second.memory() if e["event_type"] == "user_message"]
        assert asked["metadata"]["budget"] == {"tokens": 400}
        assert run["budget"]["day"]["used"] == {"tokens": 100 + 400 + 200}


async def test_what_a_child_used_counts_though_its_caller_was_cancelled() -> None:
    boss = agent(
        said(delegates_to("ada")),
        name="boss",
        budgets=SharedBudgets(per_day=Budget(tokens=10_000)),
        agents=(PeerConfig("ada", "ada", share_context=True),),
    )
    ada = worker("ada", said(call("echo", n=1)), {**said("{}"), "delay_ms": 60_000})
    async with stages(boss, ada) as (first, second):
        run_id = await first.start()
        await until(lambda: _has_echoed(second))
        await first.http.post(f"/v1/runs/{run_id}/cancel")
        await first.ended(run_id)
        used = (await first.run(run_id))["budget"]["day"]["used"]["tokens"]
        assert used == 200


async def _has_echoed(stage: Stage) -> bool:
    return "tool_result" in await stage.facts()


async def test_a_budget_of_a_stranger_that_makes_no_sense_is_refused() -> None:
    for wrong in (
        {"tokens": -1},
        {"cost": "x"},
        [],
        {"steps": 1.5},
    ):
        with pytest.raises(InvalidRequest, match="budget"):
            read_metadata({"budget": wrong})
    given = {"budget": {"tokens": 5.0, "cost": "0.5"}}
    assert read_metadata(given).budget == Budget(5, Decimal("0.5"))
