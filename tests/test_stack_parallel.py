"""Several calls in one reply: side by side, in order where they depend, told as they were asked."""

import asyncio
import json
import time
from typing import Any

import pytest
from support.model_server import model_server
from support.stack import agent, box, call, stage, stages, tool_server, until

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import OverrideConfig, PeerConfig


async def slow(value: int = 0, seconds: float = 1.0) -> int:
    """Take a while."""
    await asyncio.sleep(seconds)
    return value


async def fail() -> str:
    """Fail."""
    await asyncio.sleep(0)
    raise ValueError


async def echo(text: str) -> str:
    """Say a text again."""
    return text


def several(*calls: dict[str, Any]) -> str:
    return json.dumps(list(calls))


async def test_two_tools_that_take_a_second_each_take_about_one_together() -> None:
    both = several({"tool": "slow"}, {"tool": "slow", "arguments": {"value": 1}})
    async with (
        model_server(call("slow", seconds=0), "{}", "Warm.") as model,
        tool_server(slow) as tools,
        stage(model=model, tools=(tools,)) as helper,
    ):
        assert await helper.answer() == "Warm."
        model.play(both, "{}", "Done.")
        before = time.monotonic()
        assert await helper.answer() == "Done."
        assert 1.0 <= time.monotonic() - before <= 1.6


async def test_two_agents_are_asked_side_by_side() -> None:
    both = several({"agent": "one", "task": "t"}, {"agent": "two", "task": "t"})
    workers = [
        agent("{}", {"content": name, "delay_ms": 100}, name=name) for name in ("one", "two")
    ]
    peers = tuple(PeerConfig(worker.name, worker.name) for worker in workers)
    async with stages(agent(both, "{}", "Done.", agents=peers), *workers) as (front, *_):
        assert await front.answer() == "Done."
        events = await front.memory()
        assert [e["event_type"] for e in events[1:3]] == ["delegation_request"] * 2
        answers = [e["content"] for e in events if e["event_type"] == "delegation_response"]
        assert sorted(answers) == ["one", "two"]


async def test_what_depends_waits_and_a_result_is_told_as_it_was_asked() -> None:
    calls = several(
        {"id": "b", "tool": "echo", "arguments": {"text": "got ${a}"}},
        {"id": "a", "tool": "slow", "arguments": {"value": 7, "seconds": 0.3}},
        {"id": "c", "tool": "echo", "arguments": {"text": "at once"}, "after": []},
    )
    async with (
        model_server(calls, "{}", "Done.") as model,
        tool_server(slow, echo) as tools,
        stage(model=model, tools=(tools,)) as helper,
    ):
        await helper.answer()
        events = [e for e in await helper.memory() if e["event_type"].startswith("tool")]
        shown = [(e["event_type"], e["content"]) for e in events]
        assert shown[-2:] == [
            ("tool_call", {"tool": "echo", "arguments": {"text": "got 7"}}),
            ("tool_result", "got 7"),
        ]
        ends = [content for event_type, content in shown if event_type == "tool_result"]
        assert ends == ["at once", "7", "got 7"]
        blocks = [block.split("\n")[1] for block in model.told(1).split("\n\n")]
        assert blocks == ["got 7", "7", "at once"]


async def test_what_depends_on_a_failed_call_is_skipped_and_all_three_results_are_read() -> None:
    calls = several(
        {"id": "a", "tool": "fail"},
        {"id": "b", "tool": "echo", "arguments": {"text": "${a}"}},
        {"id": "c", "tool": "echo", "arguments": {"text": "fine"}},
    )
    async with (
        model_server(calls, "{}", "Done.") as model,
        stage(model=model, tools=(box(fail, echo),)) as helper,
    ):
        await helper.answer()
        events = await helper.memory()
        called = [e["content"]["tool"] for e in events if e["event_type"] == "tool_call"]
        assert called == ["fail", "echo"]
        blocks = [block.split("\n") for block in model.told(1).split("\n\n")]
        assert [block[0] for block in blocks] == [
            "[Step 1/5] Error from tool fail (id a):",
            "[Step 1/5] Error from tool echo (id b):",
            "[Step 1/5] Result of tool echo (id c):",
        ]
        assert blocks[1][1] == "skipped: a failed"
        assert blocks[2][1] == "fine"


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param({"loop": RunSettings(max_parallel_calls=1)}, id="one call at a time"),
        pytest.param(
            {"overrides": (OverrideConfig("slow", sequential=True),)}, id="a sequential tool"
        ),
    ],
)
async def test_calls_that_may_not_overlap_do_not(bound: dict[str, Any]) -> None:
    live: list[int] = []
    most = 0

    async def counted() -> str:
        nonlocal most
        live.append(1)
        most = max(most, len(live))
        await asyncio.sleep(0.01)
        live.pop()
        return "x"

    async def slow(n: int) -> str:
        return await counted()

    overrides = bound.pop("overrides", ())
    calls = [{"tool": "slow", "arguments": {"n": n}} for n in range(4)]
    replies = (several(*calls), "{}", "Done.")
    async with stage(*replies, tools=(box(slow, overrides=overrides),), **bound) as helper:
        await helper.answer()
        assert most == 1
        assert (await helper.facts()).count("tool_result") == 4


async def test_a_slow_sibling_loses_no_result_when_the_run_is_cancelled() -> None:
    calls = several({"tool": "echo", "arguments": {"text": "quick"}}, {"tool": "slow"})
    async with stage(calls, tools=(box(slow, echo),)) as helper:
        run_id = await helper.start()

        async def has_result() -> bool:
            return "tool_result" in await helper.facts()

        await until(has_result)
        await helper.http.post(f"/v1/runs/{run_id}/cancel")
        events = await helper.memory()
        assert [e["event_type"] for e in events][-3:] == ["tool_result", "tool_error", "aborted"]
        assert events[-3]["content"] == "quick"
        assert events[-2]["metadata"]["error"] == "interrupted"


async def test_runs_of_two_sessions_go_on_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def meet() -> str:
        await both.wait()
        return "met"

    async with asyncio.timeout(5), stage(call("meet"), "{}", "x", tools=(box(meet),)) as helper:
        await asyncio.gather(*(helper.answer(session_id=session) for session in "ab"))


async def test_runs_of_one_session_take_turns() -> None:
    live = most = 0

    async def alone() -> str:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.02)
        live -= 1
        return "x"

    async with stage(call("alone"), "{}", "Done.", tools=(box(alone),)) as helper:
        await asyncio.gather(*(helper.answer(session_id="s") for _ in range(3)))
        assert most == 1
        runs = (await helper.http.get("/v1/runs")).json()["data"]
        assert [run["status"] for run in runs] == ["completed"] * 3
        assert (await helper.facts()).count("agent_response") == 3
