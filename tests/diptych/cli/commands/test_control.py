"""`diptych steer`, `follow-up`, `queue` and `cancel`: another terminal reaches a run."""

import asyncio
import json

import pytest
from support.command_line import diptych
from support.stack import Stage, box, call, stage, until

from diptych.cli.client.remote import RemoteError, agent_at

pytestmark = pytest.mark.timeout(300)


async def user_messages(helper: Stage) -> list[str]:
    events = await helper.memory()
    return [e["content"] for e in events if e["event_type"] == "user_message"]


async def test_a_run_is_steered_followed_up_and_cleared_from_another_terminal() -> None:
    gate = asyncio.Event()

    async def work() -> str:
        """Work until it is over."""
        await gate.wait()
        return "worked"

    replies = (call("work"), "{}", "First.", "{}", "Second.")
    async with stage(*replies, tools=(box(work),)) as helper:
        run_id = await helper.start("go")
        at = ("--at", helper.url)
        assert await diptych("follow-up", run_id, "dropped", *at) == (0, "", "")
        code, out, err = await diptych("queue", run_id, "--clear", *at)
        assert (code, out, err) == (0, "follow-up: dropped\n", "dropped: 1\n")
        assert await diptych("steer", run_id, "be brief", *at) == (0, "", "")
        assert await diptych("follow-up", run_id, "and then?", *at) == (0, "", "")
        code, out, _ = await diptych("queue", run_id, "--json", *at)
        assert json.loads(out) == {
            "steer": [{"message": "be brief"}],
            "follow_up": [{"message": "and then?"}],
        }
        gate.set()
        run = await helper.ended(run_id)
        assert run["answer"] == "First.\n\nSecond."
        assert await user_messages(helper) == ["go", "dropped", "be brief", "and then?"]
        for command in ("steer", "follow-up"):
            code, _, err = await diptych(command, run_id, "too late", *at)
            assert (code, "409" in err) == (1, True)
        assert await diptych("cancel", run_id, *at) == (0, "", f"{run_id}: completed\n")


async def test_a_run_is_cancelled_from_another_terminal() -> None:
    async def hang() -> str:
        """Hang for ever."""
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async with stage(call("hang"), "{}", "x", tools=(box(hang),)) as helper:
        run_id = await helper.start("go")

        async def hangs() -> bool:
            return "tool_call" in await helper.facts()

        await until(hangs)
        at = ("--at", helper.url)
        assert await diptych("cancel", run_id, *at) == (0, "", f"{run_id}: aborted\n")
        assert (await helper.facts())[-2:] == ["tool_error", "aborted"]
        code, _, err = await diptych("cancel", "run-x-y", *at)
        assert (code, "404" in err) == (1, True)


@pytest.mark.parametrize("run_id", [".", "..", ""])
async def test_an_id_is_never_another_resource(run_id: str) -> None:
    async with stage("{}") as helper, agent_at(helper.url) as remote:
        for ask in (remote.queue, remote.clear_queue, remote.cancel, remote.tree):
            with pytest.raises(RemoteError, match=r"no run with this id|the id is empty"):
                await ask(run_id)
