"""Several calls in one reply: side by side, in order where they depend, told as they were asked."""

import asyncio
import json
from typing import Any

import pytest
from support.stack import box, stage, tool_server

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import OverrideConfig


def several(*calls: dict[str, Any]) -> str:
    return json.dumps(list(calls))


async def test_two_calls_of_one_reply_are_made_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def meet(n: int) -> str:
        await both.wait()
        return f"{n} met"

    calls = [{"tool": "meet", "arguments": {"n": n}} for n in range(2)]
    async with (
        tool_server(meet) as tools,
        stage(several(*calls), "{}", "Done.", tools=(tools,)) as helper,
    ):
        assert await helper.answer() == "Done."
        assert (await helper.facts()).count("tool_result") == 2


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
