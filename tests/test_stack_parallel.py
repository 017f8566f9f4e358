"""Several calls in one reply: side by side, in order where they depend, told as they were asked."""

import asyncio
import json
import time
from typing import Any

import pytest
from support.model_server import model_server
from support.stack import box, call, stage, tool_server

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import OverrideConfig


async def slow(value: int = 0, seconds: float = 1.0) -> int:
    """Take a while."""
    await asyncio.sleep(seconds)
    return value


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
