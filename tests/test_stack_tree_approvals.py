"""Calls far down a tree wait for approval or input: asked about and decided at the top."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import GetTaskRequest, TaskState
from support.stack import Stage, box, call, until
from support.trees import chain, differences, said, told

from diptych.core.events import InputRequest
from diptych.core.messages import CallOutput
from diptych.mcp import McpTools
from diptych.policy.rules import Policy, Rule
from diptych.runs import call_maker, run_signals

ASK = Policy((Rule("tool", "pay", "ask", reason="money"),))
PAID: list[int] = []
DEPTH = 4
CALL = ".".join(["call_1_1"] * DEPTH)


async def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return f"paid {amount}"


def paying(**above: Any) -> Any:
    PAID.clear()
    leaf = [said(call("pay", amount=5)), said("{}"), said("Leaf.")]
    return chain(*leaf, depth=DEPTH, tools=(box(pay),), policy=ASK, above=above)


async def waiting_at_the_top(top: Stage) -> str:
    run_id = await top.start()

    async def waits() -> bool:
        return (await top.run(run_id))["status"] == "input-required"

    await until(waits)
    return run_id


async def decide(stage: Stage, run_id: str, call_id: str = CALL, **body: Any) -> Any:
    return await stage.http.post(f"/v1/runs/{run_id}/approvals/{call_id}", json=body)


async def test_a_call_four_levels_down_is_shown_and_decided_at_the_top() -> None:
    async with paying() as served:
        top, leaf = served[0], served[-1]
        run_id = await waiting_at_the_top(top)
        (approval,) = (await top.run(run_id))["approvals"]
        assert (approval["call_id"], approval["status"]) == (CALL, "waiting")
        assert approval["path"] == ["call_1_1"] * DEPTH
        assert approval["call"] == {"tool": "pay", "arguments": {"amount": 5}}
        assert (approval["agent"], approval["reason"]) == ("agent-2", "money")
        (listed,) = (await top.http.get("/v1/approvals")).json()["data"]
        assert listed == approval
        for stage in served:
            (run,) = (await stage.http.get("/v1/runs")).json()["data"]
            assert run["status"] == "input-required"
            (task,) = await tasks_of(stage)
            assert task == TaskState.TASK_STATE_INPUT_REQUIRED
        assert PAID == []
        decided = await decide(top, run_id, decision="approve")
        assert decided.status_code == 200, decided.text
        assert (decided.json()["status"], decided.json()["decision"]) == ("decided", "approve")
        second = await decide(top, run_id, decision="reject")
        assert second.status_code == 409
        assert second.json()["error"]["code"] == "already_decided"
        assert "approve" in second.json()["error"]["message"]
        assert (await top.ended(run_id))["answer"] == "agent-1 is done."
        assert PAID == [5]
        assert "tool_result" in await leaf.facts()
        assert differences(await told(top, run_id), {}) == []  # nothing is told after the end


async def tasks_of(stage: Stage) -> list[Any]:
    card = await A2ACardResolver(stage.http, stage.url).get_agent_card()
    client = ClientFactory(ClientConfig(httpx_client=stage.http, streaming=False)).create(card)
    runs = (await stage.http.get("/v1/runs")).json()["data"]
    return [(await client.get_task(GetTaskRequest(id=run["id"]))).status.state for run in runs]


async def test_what_does_not_fit_below_is_refused_at_the_top_with_its_place() -> None:
    async with paying() as served:
        run_id = await waiting_at_the_top(served[0])
        wrong = await decide(served[0], run_id, decision="edit", arguments={"amount": "much"})
        assert wrong.status_code == 422, wrong.text
        assert wrong.json()["error"]["param"].startswith("arguments")
        assert (await decide(served[0], run_id, "call_1_1.call_9_9")).status_code in {400, 404}
        edited = await decide(served[0], run_id, decision="edit", arguments={"amount": 1})
        assert edited.status_code == 200, edited.text
        assert edited.json()["made_as"] == {"tool": "pay", "arguments": {"amount": 1}}
        await served[0].ended(run_id)
        assert PAID == [1]


async def test_the_deadlines_of_all_stand_still_while_a_call_waits_below() -> None:
    async with paying(deadline=2.0) as served:
        run_id = await waiting_at_the_top(served[0])
        await asyncio.sleep(2.2)
        assert (await served[0].run(run_id))["status"] == "input-required"
        await decide(served[0], run_id, decision="approve")
        assert (await served[0].ended(run_id))["status"] == "completed"


@pytest.mark.parametrize("how", ["cancel", "steer"])
async def test_what_waits_below_is_closed_with_its_run(how: str) -> None:
    async with paying() as served:
        run_id = await waiting_at_the_top(served[0])
        if how == "cancel":
            await served[0].http.post(f"/v1/runs/{run_id}/cancel")
        else:
            (run,) = (await served[-1].http.get("/v1/runs")).json()["data"]
            await served[-1].http.post(f"/v1/runs/{run['id']}/steer", json={"message": "no"})
        (approval,) = (await served[0].ended(run_id))["approvals"]
        assert approval["status"] == "closed"
        assert (await decide(served[0], run_id, decision="approve")).status_code == 409
        assert PAID == []


def paying_after(go_on: asyncio.Event) -> Callable[[int], Awaitable[str]]:
    async def pay(amount: int) -> str:
        """Pay, when it may."""
        await go_on.wait()
        return f"paid {amount}"

    return pay


def hear_no_decisions_from_below(monkeypatch: pytest.MonkeyPatch) -> None:
    real = call_maker.child_waits

    def deaf(call_: Any, child: Any, event: Any) -> Any:
        return real(call_, child, event) if event.type == "approval_requested" else ()

    monkeypatch.setattr(call_maker, "child_waits", deaf)


async def test_a_decision_that_does_not_come_back_up_in_time_counts_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = asyncio.Event()
    pay = paying_after(go_on)
    monkeypatch.setattr(run_signals, "SIGNAL_SECONDS", 1.0)
    hear_no_decisions_from_below(monkeypatch)
    leaf = [said(call("pay", amount=5)), said("{}"), said("Leaf.")]
    async with chain(*leaf, depth=3, tools=(box(pay),), policy=ASK) as served:
        run_id, call_id = await waiting_at_the_top(served[0]), "call_1_1.call_1_1.call_1_1"
        decided = await decide(served[0], run_id, call_id, decision="approve")
        assert decided.status_code == 202, decided.text
        told_ = decided.json()
        assert (told_["status"], told_["decision"]) == ("waiting", "approve")
        assert "approval_decided" in await served[-1].facts()
        again = await decide(served[0], run_id, call_id, decision="reject")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "already_decided")
        go_on.set()
        assert (await served[0].ended(run_id))["status"] == "completed"


async def test_who_decides_below_while_all_is_cancelled_is_told_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = asyncio.Event()
    pay = paying_after(go_on)
    hear_no_decisions_from_below(monkeypatch)
    leaf = [said(call("pay", amount=5)), said("{}"), said("Leaf.")]
    async with chain(*leaf, depth=2, tools=(box(pay),), policy=ASK) as (top, below):
        run_id, call_id = await waiting_at_the_top(top), "call_1_1.call_1_1"
        deciding = asyncio.create_task(decide(top, run_id, call_id, decision="approve"))

        async def is_decided() -> bool:
            return "approval_decided" in await below.facts()

        await until(is_decided)
        await top.http.post(f"/v1/runs/{run_id}/cancel")
        decided = await deciding
        assert (decided.status_code, decided.json()["status"]) == (200, "closed")
        assert decided.json()["decision"] == "approve"
        (shown,) = (await top.run(run_id))["approvals"]
        assert (shown["status"], "decision" in shown) == ("closed", False)


NAME = {"type": "object", "properties": {"firstName": {"type": "string"}, "last_name": {}}}


async def test_a_question_four_levels_down_is_shown_and_answered_at_the_top(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def asking(_: Any, tool: Any, arguments: Any, context: Any) -> CallOutput:
        del tool, arguments
        first = await context.ask(InputRequest("form", "Who pays?", NAME))
        second = await context.ask(InputRequest("form", "Sure?", {"type": "object"}))
        return CallOutput(f"{first.content} {second.action}")

    monkeypatch.setattr(McpTools, "call", asking)
    leaf = [said(call("pay", amount=5)), said("{}"), said("Leaf.")]
    async with chain(*leaf, depth=DEPTH, tools=(box(pay),)) as served:
        top = served[0]
        run_id = await waiting_at_the_top(top)
        (question,) = (await top.run(run_id))["inputs"]
        assert (question["call_id"], question["status"]) == (CALL, "waiting")
        assert (question["message"], question["schema"]) == ("Who pays?", NAME)
        assert question["agent"] == "agent-2"
        (listed,) = (await top.http.get("/v1/inputs")).json()["data"]
        assert listed == question
        wrong = await answer(top, run_id, action="accept", content={"firstName": 5})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (422, "content.firstName")
        content = {"firstName": "Ada-in-private"}
        answered = await answer(top, run_id, action="accept", content=content)
        assert answered.status_code == 200, answered.text
        assert (answered.json()["status"], answered.json()["action"]) == ("answered", "accept")

        async def asks_again() -> bool:
            inputs = (await top.run(run_id))["inputs"]
            return [each["status"] for each in inputs] == ["answered", "waiting"]

        await until(asks_again)
        assert (await answer(top, run_id, action="decline")).status_code == 200
        second = await answer(top, run_id, action="accept", content={})
        assert (second.status_code, second.json()["error"]["code"]) == (409, "already_answered")
        assert (await top.ended(run_id))["answer"] == "agent-1 is done."
        [result] = [r for r in await served[-1].memory() if r["event_type"] == "tool_result"]
        assert result["content"] == f"{content} decline"
        shown = [str(e) for stage in served for e in await stage.memory() if "input_" in str(e)]
        assert "Ada-in-private" not in "".join(e for e in shown if "tool_result" not in e)


async def answer(stage: Stage, run_id: str, **body: Any) -> Any:
    return await stage.http.post(f"/v1/runs/{run_id}/inputs/{CALL}", json=body)
