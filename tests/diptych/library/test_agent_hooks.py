"""Hooks and control in the Python API: plain functions around calls, runs taken step by step."""

import asyncio
import json
import threading

import pytest

from diptych import Agent, CallInfo, Deny, ResultInfo, RunError, StepInfo
from diptych.core.errors import AlreadyDecided, ConfigError, InvalidRequest, RunEnded

PAID = []


@pytest.fixture(autouse=True)
def nothing_paid():
    PAID.clear()


def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"paid {amount}"


CALL = '{"tool": "pay", "arguments": {"amount": 80}}'
ANSWERS = (CALL, "{}", "Paid.")


def cashier(*replies, **about):
    return Agent("cashier", tools=[pay], mock_responses=list(replies or ANSWERS), **about)


def cap(call: CallInfo):
    return {"amount": min(50, call.arguments["amount"])}


async def cap_later(call: CallInfo):
    await asyncio.sleep(0)
    return {"amount": min(40, call.arguments["amount"])}


async def records_of(agent, **about):
    return [item async for item in agent.stream("Pay.", **about)]


async def test_functions_sync_or_async_are_asked_in_order():
    async with cashier(before_call=[cap, cap_later]) as agent:
        items = await records_of(agent)
    assert PAID == [40]
    judged = next(i for i in items if i.type == "other" and i.name == "call_judged")
    assert (judged.content, judged.metadata["hook"]) == ("rewrite", "cap_later")


async def test_a_function_that_denies_says_why_and_one_that_raises_denies_by_its_name():
    def strict(call):
        raise KeyError("no account")

    async with cashier(before_call=lambda _: Deny("not today")) as agent:
        told = str(await records_of(agent))
    assert "denied: not today" in told
    async with cashier(before_call=strict) as agent:
        told = str(await records_of(agent))
    assert "denied: the hook strict failed: KeyError" in told
    assert "no account" not in told
    assert PAID == []


async def test_a_function_that_blocks_a_thread_is_given_up():
    release = threading.Event()
    async with cashier(before_call=lambda _: release.wait(20), hook_seconds=0.2) as agent:
        told = str(await asyncio.wait_for(records_of(agent), 10))
        release.set()
    assert "did not answer within 0.2 s" in told
    assert PAID == []


async def test_functions_that_block_hold_up_no_others():
    release = threading.Event()

    def stuck(call):
        release.wait(20)

    async with cashier(before_call=stuck, after_step=lambda _: None, hook_seconds=0.5) as agent:
        runs = [asyncio.wait_for(agent.run("Pay."), 10) for _ in range(40)]
        assert [str(each) for each in await asyncio.gather(*runs)] == ["Paid."] * 40
        release.set()


@pytest.mark.parametrize("raised", [StopIteration, KeyboardInterrupt, SystemExit])
async def test_what_ends_loops_and_processes_is_a_failure_of_the_function(raised):
    def strict(call):
        raise raised

    async with cashier(before_call=strict) as agent:
        told = str(await asyncio.wait_for(records_of(agent), 10))
    assert "denied: the hook strict failed: " in told
    assert PAID == []


async def test_a_result_a_step_and_an_answer_are_seen_by_functions():
    steps = []

    def hide(call: CallInfo, result: ResultInfo):
        return result.text.replace("80", "**")

    def enough(step: StepInfo):
        steps.append((step.number, [(c.tool, r.text) for c, r in step.calls]))
        return True

    def polite(answer: str):
        return None if "please" in answer else "say please"

    hooks = {"after_call": hide, "after_step": enough, "validate_answer": polite}
    async with cashier(CALL, "Paid.", "Paid, please.", **hooks) as agent:
        assert str(await agent.run("Pay.")) == "Paid, please."
    assert steps == [(1, [("pay", "paid **")])]


async def test_what_a_function_does_to_a_call_or_result_that_it_was_shown_changes_nothing():
    """Else a call would be made that nobody checked, and that is not the one on record."""

    def meddle(call, result=None):
        call.arguments["amount"] = 1_000_000
        if result is not None:
            result.value["paid"] = 1_000_000

    def pay_with_value(amount: int) -> dict[str, int]:
        """Pay an amount."""
        PAID.append(amount)
        return {"paid": amount}

    replies = [f"[{CALL.replace('pay', 'pay_with_value')}]", "{}", "Paid."]
    agent = Agent(
        "cashier",
        tools=[pay_with_value],
        mock_responses=replies,
        before_call=meddle,
        after_call=meddle,
        policy=[{"match": {"tool": "*"}, "when": "args.amount > 100", "do": "deny"}],
    )
    async with agent:
        items = await records_of(agent)
    assert PAID == [80]
    assert "1000000" not in str(items)


async def test_a_context_that_is_no_text_fails_the_run():
    for given in (5, {"time": "noon"}, ["noon", 5], b"noon"):
        async with cashier(context=lambda _, given=given: given) as agent:
            with pytest.raises(RunError) as caught:
                await agent.run("Pay.")
        assert caught.value.code == "hook_failed"


def test_what_is_no_function_is_refused():
    with pytest.raises(ConfigError, match="a hook is a function"):
        cashier(before_call=["cap"])
    for seconds in (0, float("nan")):
        with pytest.raises(ConfigError, match="hook_seconds"):
            cashier(hook_seconds=seconds)
    with pytest.raises(ConfigError, match="queueMode"):
        cashier(queue_mode="two")


async def test_a_run_is_taken_step_by_step():
    async with cashier(CALL, CALL, "{}", "Paid.") as agent:
        run_id = await agent.begin("Pay.", paused=True)
        assert PAID == []
        first = await agent.step(run_id)
        assert PAID == [80]
        assert first[-1].event_type == "tool_result"
        await agent.step(run_id)
        assert PAID == [80, 80]
        last = await agent.step(run_id)  # the model has nothing more to call, and answers
        assert [record.event_type for record in last[-2:]] == ["agent_response", "completed"]
        assert await agent.step(run_id) == []


async def test_a_paused_run_can_be_steered_cancelled_or_let_go():
    async with cashier("{}", "One.", "{}", "Two.") as agent:
        run_id = await agent.begin("Pay.", paused=True)
        await asyncio.sleep(0.3)  # it waits before its first request now
        for _ in range(2):
            await agent.steer(run_id, "in French", key="m-1")
        await agent.follow_up(run_id, "and in German")
        assert [m.message for m in await agent.queued(run_id)] == ["in French", "and in German"]
        assert len(await agent.clear_queue(run_id)) == 2
        await agent.follow_up(run_id, "and in Dutch")
        await agent.unpause(run_id)
        while (end := await agent.step(run_id)) and end[-1].event_type != "completed":
            pass
        with pytest.raises(RunEnded):
            await agent.steer(run_id, "more")
        other = await agent.begin("Pay.", paused=True)
        await agent.cancel(other)
        assert (await agent.step(other)) == []
        assert str(await agent.run("Pay again.")) == "One.", "other runs are not held"


async def waiting(agent):
    run_id = await agent.begin("Pay.")
    async for batch in (await agent.start()).runs.subscribe(run_id):
        if any(getattr(item, "event_type", "") == "approval_requested" for item in batch):
            break
    return run_id


async def test_a_change_that_json_cannot_hold_is_refused_and_the_run_goes_on_waiting():
    async with cashier(policy=POLICY) as agent:
        run_id = await waiting(agent)
        for amount in (10**30, float("nan"), object(), "\ud800"):
            with pytest.raises(InvalidRequest):
                await agent.edit(run_id, "call_1_1", {"amount": amount})
            call = {"tool": "pay", "arguments": {"amount": amount}}
            with pytest.raises(InvalidRequest):
                await agent.replace(run_id, "call_1_1", call)
        await agent.edit(run_id, "call_1_1", {"amount": 7})
        async for _ in (await agent.start()).runs.subscribe(run_id):
            pass
    assert PAID == [7]


async def test_a_run_has_bounds_of_its_own_up_to_100_steps():
    pays = [json.dumps({"tool": "pay", "arguments": {"amount": n}}) for n in range(6)]
    broken = '{"tool":'
    async with cashier(*pays, "{}", "Paid.", max_steps=1) as agent:
        for steps in (0, 101, "3", 2.0, True):
            with pytest.raises(InvalidRequest, match="at least 1 and at most 100"):
                await agent.run("Pay.", max_steps=steps)
        limited = await agent.run("Pay.")
        assert ("(1)" in limited.text, limited.finish_reason) == (True, "max_steps")
        assert [event.type for event in limited.events][-2:] == ["turn_end", "run_end"]
        PAID.clear()
        assert str(await agent.run("Pay.", max_steps=7)) == "Paid."
        assert list(range(6)) == PAID
    async with cashier(broken, broken, "No.") as agent:
        assert str(await agent.run("Pay.", max_retries=1)) == "No."
        with pytest.raises(RunError, match="mock_exhausted"):
            await agent.run("Pay.")
        for retries in (-1, 101, "3", True):
            with pytest.raises(InvalidRequest, match="at least 0 and at most 100"):
                await agent.run("Pay.", max_retries=retries)


POLICY = [{"match": {"tool": "pay"}, "do": "ask"}]


@pytest.mark.parametrize(
    ("decide", "paid"),
    [
        (lambda agent, run: agent.approve(run, "call_1_1"), [80]),
        (lambda agent, run: agent.reject(run, "call_1_1", "not now"), []),
        (lambda agent, run: agent.edit(run, "call_1_1", {"amount": 9}), [9]),
        (
            lambda agent, run: agent.replace(
                run, "call_1_1", {"tool": "pay", "arguments": {"amount": 25}}
            ),
            [25],
        ),
    ],
    ids=["approve", "reject", "edit", "replace"],
)
async def test_a_call_that_waits_is_decided_in_python(decide, paid):
    async with cashier(policy=POLICY) as agent:
        run_id = await agent.begin("Pay.")
        hosted = await agent.start()
        async for batch in hosted.runs.subscribe(run_id):
            if any(getattr(i, "event_type", "") == "approval_requested" for i in batch):
                await decide(agent, run_id)
                with pytest.raises(AlreadyDecided):
                    await agent.approve(run_id, "call_1_1")
        records = await hosted.runs.records(run_id)
        assert records[-1].event_type == "completed"
        assert paid == PAID
        with pytest.raises(AlreadyDecided):
            await agent.approve(run_id, "call_1_1")
