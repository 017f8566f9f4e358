"""Runs in Python: open without asking, in any loop, with results, events and decisions."""

import asyncio
import copy
import json
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import redis_server

from diptych import (
    Agent,
    AlreadyDecided,
    Approval,
    CallInfo,
    InputAnswerEvent,
    InputRequestEvent,
    InvalidRequest,
    Message,
    NotResumable,
    RunError,
    RunNotFound,
    RunStartEvent,
    ToolResultEvent,
    tool,
)
from diptych.core.errors import RunLost
from diptych.core.events import InputRequest
from diptych.core.messages import CallOutput
from diptych.mcp import McpTools
from diptych.testing import RecordedTool, ScriptedModel, call, delegate, raw


@tool(ask="Payments need a person.")
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def cashier(*replies: Any, **about: Any) -> tuple[Agent, RecordedTool[Any, str]]:
    paid = RecordedTool(pay)
    model = ScriptedModel(*(replies or (call("pay", amount=80), "Paid.")))
    return Agent("cashier", model=model, tools=[paid], **about), paid


# ---- open and closed


PROGRAM = """
import asyncio, sys
from diptych import Agent
def add(a: int, b: int) -> int:
    "Add."
    return a + b
helper = Agent("helper", mock_responses=["{}", "Let me add.", "{}"])
agent = Agent(
    "boss", tools=[add, [sys.executable, sys.argv[1]]], agents=[helper],
    mock_responses=['{"tool": "add", "arguments": {"a": 2, "b": 2}}',
                    '{"agent": "helper", "task": "Help."}', "{}", "It is 4."],
)
async def main():
    print(await agent.run("What is 2 + 2?", session_id="s"))
    print(len(await agent.memory.get_session_events("s")))
asyncio.run(main())
asyncio.run(main())
async def leave():
    await agent.begin("Who waits?")
asyncio.run(leave())
asyncio.run(main())
print(agent.run_sync("And now?"))
"""


def test_a_program_needs_no_async_with_and_ends_in_silence(tmp_path: Path) -> None:
    """Each loop closes its agent, with the agent's command and its sub-agent."""
    server = tmp_path / "tools.py"
    server.write_text("from mcp.server import MCPServer\nMCPServer('none').run()\n")
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(server)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    lines = ["It is 4.", "6", "It is 4.", "12", "It is 4.", "6", "It is 4."]
    assert (done.stdout.splitlines(), done.stderr) == (lines, "")


async def test_sessions_last_as_long_as_their_object() -> None:
    agent, _ = cashier("Hello, Ada.", "You are Ada.")
    async with agent:
        await agent.run("I am Ada.", session_id="s")
    async with agent:
        assert str(await agent.run("Who am I?", session_id="s")) == "You are Ada."
        assert len(await agent.memory.get_session_events("s")) == 4


def test_run_sync_keeps_sessions_and_serves_threads() -> None:
    agent = Agent("helper", mock_responses=["{}", {"content": "Hi.", "delay_ms": 50}])
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(agent.run_sync("Hi", session_id="s").text))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["Hi."] * 4
    with pytest.raises(RunError, match="mock_exhausted"):
        Agent("helper", model=ScriptedModel()).run_sync("Hi")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_run_sync_outlives_functions_that_end_processes() -> None:
    def leave(how: str) -> str:
        """Leave."""
        raise SystemExit(how) if how == "exit" else KeyboardInterrupt

    def agent(how: str) -> Agent:
        return Agent("helper", model=ScriptedModel(call("leave", how=how), "Here."), tools=[leave])

    [failed] = [e for e in agent("exit").run_sync("Hi").events if e.type == "tool_result"]
    assert "SystemExit: exit" in failed.text
    [thread] = [each for each in threading.enumerate() if each.name == "diptych run_sync"]
    with pytest.raises(CancelledError):
        agent("interrupt").run_sync("Hi")
    thread.join()
    assert agent("exit").run_sync("Hi").text == "Here."


async def test_run_sync_in_a_loop_says_what_to_write_instead() -> None:
    agent, _ = cashier()
    with pytest.raises(RuntimeError, match=r"running event loop; write: await agent.run\(…\)"):
        agent.run_sync("Pay.")
    with pytest.raises(RuntimeError, match=r"write: await agent.decide\(…\)"):
        agent.decide_sync("run-1", {})


STORED = """
import sys
from diptych import Agent, ConfigError
def agent():
    return Agent("helper", mock_responses=["{}", "Hi."], store="sqlite:" + sys.argv[1])
for _ in range(3):
    last = agent()
    print(last.run_sync("Hi"))
try:
    agent().run_sync("Hi")
except ConfigError as error:
    print("of this process" in str(error))
with last:
    pass
with agent() as other:
    print(other.run_sync("Hi"))
print(last.run_sync("Hi"))
"""


def test_an_agent_with_a_file_is_replaced_closed_and_ends_in_silence(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", STORED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.split("\n"), done.stderr) == (
        [*("Hi.", "Hi.", "Hi.", "True", "Hi.", "Hi."), ""],
        "",
    )


@pytest.mark.parametrize(
    ("message", "options", "said"),
    [
        (5, {}, r"message: must be a str \(got 5\)"),
        (None, {}, "message: must be a str"),
        ("Hi", {"session_id": 5}, "session_id: must be a str"),
        ("Hi", {"max_steps": "3"}, "max_steps must be at least 1"),
        ("Hi", {"on_approval": "approve"}, "on_approval: must be a function"),
    ],
)
async def test_a_run_of_other_types_is_refused(message: Any, options: Any, said: str) -> None:
    agent, _ = cashier()
    for started in (agent.run(message, **options), anext(agent.stream(message, **options))):
        with pytest.raises(InvalidRequest, match=said):
            await started


def test_a_run_that_waited_in_another_loop_is_lost_and_the_message_says_how_to_keep_it() -> None:
    agent, _ = cashier()
    waiting = asyncio.run(agent.run("Pay."))
    with pytest.raises(RunLost, match="another event loop or process: use run_sync"):
        asyncio.run(agent.decide(waiting, {"call_1_1": "approve"}))


# ---- results and events


async def test_the_events_of_a_run_are_typed_and_in_order() -> None:
    agent, _ = cashier(call("pay", amount=80), raw('{"tool":'), "Paid well.")
    async with agent:
        events = [e async for e in agent.stream("Pay.", on_approval=lambda _: "approve")]
        told = [e.type for e in events if e.type != "other"]
        turns = [e for e in told if e.startswith("turn")]
        assert turns == ["turn_start", "turn_end"] * 4, "each request to the model"
        assert [e for e in told if not e.startswith("turn")] == [
            *("run_start", "approval_request", "approval_decision", "tool_call", "tool_result"),
            *("text", "answer", "run_end"),
        ]
        assert told.index("tool_result") < told.index("turn_end") == told.index("turn_start", 2) - 1
        assert [e.number for e in events if e.type == "turn_start"] == [1, 2, 3, 4]
        start, end = events[0], events[-1]
        assert start.type == "run_start"
        assert end.type == "run_end"
        assert (end.status, end.usage.completion_tokens) == ("completed", 9)
        [ended] = [e for e in (await agent.decide(start.run_id, {})).events if e.type == "run_end"]
        assert ended == end, "a replay"


async def test_a_replay_has_turns_without_notices() -> None:
    agent, _ = cashier()
    async with agent:
        result = await agent.run("Pay.", on_approval=lambda _: "approve")
        again = await agent.decide(result, {})
    kinds = [e.type for e in again.events if e.type not in {"other", "run_start"}]
    assert kinds == [
        *("turn_start", "approval_request", "approval_decision", "tool_call", "tool_result"),
        *("turn_end", "turn_start", "turn_end", "turn_start", "text", "answer", "turn_end"),
        "run_end",
    ]


async def test_a_sub_agents_steps_stand_in_its_callers_events() -> None:
    below_model = ScriptedModel(call("pay", amount=1), "It is here.")
    lookup = Agent("lookup", model=below_model, tools=[pay], description="Looks things up.")
    model = ScriptedModel(delegate("lookup", "Find it."), "Found.")
    boss = Agent("boss", model=model, agents=[lookup], instructions="Delegate.")
    waiting = await boss.run("Find it.")
    [asked] = waiting.approvals
    assert (asked.call_id, asked.tool) == ("call_1_1.call_1_1", "pay")
    assert "Looks things up." in model.requests[0][0].content
    result = await boss.decide(waiting, {asked.call_id: {"decision": "reject", "reason": "no"}})
    assert str(result) == "Found."
    assert [e.text for e in result.events if e.type == "delegation_result"] == ["It is here."]
    model.then(delegate("lookup", "Again."), "Found again.")
    below_model.then(call("pay", amount=2), "Here again.")
    events = [e async for e in boss.stream("Again.", on_approval=lambda _: "approve")]
    below = [(e.path, e.event) for e in events if e.type == "sub_agent"]
    assert {path for path, _ in below} == {("call_1_1",)}
    kinds = [event.type for _, event in below if event.type != "other"]
    assert kinds == [
        *("approval_request", "approval_decision", "tool_call", "tool_result"),
        *("text", "answer", "run_end"),
    ]


async def test_a_sub_agent_that_fails_or_is_cancelled_ends_with_its_call() -> None:
    hangs = asyncio.Event()
    stopped = asyncio.Event()

    async def hang() -> str:
        """Hang."""
        hangs.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    def team(*replies: Any) -> Agent:
        below = Agent("below", model=ScriptedModel(*replies), tools=[hang])
        return Agent(
            "boss", model=ScriptedModel(delegate("below", "Do."), "So it is."), agents=[below]
        )

    result = await team().run("Do.")
    [failed] = [e for e in result.events if e.type == "delegation_result"]
    assert failed.error == "failed"
    assert failed.text.startswith("agent below failed: the ScriptedModel has no reply left")
    boss = team(call("hang"))
    run_id = await boss.begin("Do.")
    await hangs.wait()
    await boss.cancel(run_id)
    await asyncio.wait_for(stopped.wait(), 10)


async def test_text_is_streamed_and_its_run_may_fail() -> None:
    agent, _ = cashier("One two.", call("pay", amount=1), "Three.")
    assert [text async for text in agent.stream_text("Hi")] == ["One two."]
    with pytest.raises(RunError, match="input_required: calls wait for approval: call_1_1"):
        [text async for text in agent.stream_text("Pay.")]
    limited = Agent("a", mock_responses=[call("no").written] * 2, max_steps=1, tools=[len_of])
    limited_text = [text async for text in limited.stream_text("Hi")]
    assert limited_text == ["Reached maximum reasoning steps (1)"]
    with pytest.raises(RunError, match="mock_exhausted"):
        [text async for text in Agent("a", mock_responses=["{}"]).stream_text("Hi")]
    held = Agent("a", mock_responses=["{}", "Held back."], validate_answer=lambda _: None)
    assert [text async for text in held.stream_text("Hi")] == ["Held back."]


def len_of(text: str) -> int:
    """Count."""
    return len(text)


async def test_records_cannot_be_changed() -> None:
    agent, _ = cashier()
    async with agent:
        result = await agent.run("Pay.", session_id="s", on_approval=lambda _: "approve")
        [called] = [e for e in result.events if e.type == "tool_call"]
        content: Any
        for read in range(2):
            events = await agent.memory.get_session_events("s")
            content = next(e.content for e in events if e.event_type == "tool_call")
            assert content == {"tool": "pay", "arguments": {"amount": 80}}, read
            for given in (content["arguments"], called.arguments):
                for change in (
                    lambda given=given: given.update(amount=1),
                    lambda given=given: given.__setitem__("amount", 1),
                    lambda given=given: given.pop("amount"),
                ):
                    with pytest.raises(TypeError, match="records cannot be changed"):
                        change()
        assert json.loads(json.dumps(content)) == content
        mine = copy.deepcopy(content)
        mine["arguments"]["amount"] = 1


# ---- calls that wait


async def test_a_run_that_waits_ends_with_the_open_approvals_and_goes_on_when_decided() -> None:
    first, second, third = (call("pay", amount=n) for n in (1, 2, 3))
    agent, paid = cashier(first & second & third, "Done.")
    async with agent:
        waiting = await asyncio.wait_for(agent.run("Pay.", output={"type": "string"}), 20)
        assert [a.arguments for a in waiting.approvals] == [{"amount": n} for n in (1, 2, 3)]
        assert (waiting.text, waiting.finish_reason) == ("", "input_required")
        with pytest.raises(RunError, match="input_required"):
            _ = waiting.output
        for wrong in ("yes", {"decision": "maybe"}, {"approve": True}, 5):
            with pytest.raises(InvalidRequest, match="a decision is"):
                await agent.decide(waiting, {"call_1_1": wrong})  # type: ignore[dict-item]
        fewer = await agent.decide(
            waiting,
            {"call_1_1": "approve", "call_1_2": {"decision": "edit", "arguments": {"amount": 9}}},
        )
        assert [a.call_id for a in fewer.approvals] == ["call_1_3"]
        with pytest.raises(AlreadyDecided):
            await agent.decide(fewer, {"call_1_1": "reject"})
    assert sorted(each["amount"] for each in paid.calls) == [1, 9]


async def test_somebody_may_be_asked_who_leaves_some_calls_waiting() -> None:
    asked: list[Approval] = []

    async def decide(approval: Approval) -> Any:
        asked.append(approval)
        return "approve" if approval.arguments["amount"] == 1 else None

    agent, paid = cashier(call("pay", amount=1) & call("pay", amount=2), "Done.")
    async with agent:
        waiting = await agent.run("Pay.", on_approval=decide)
        assert [a.arguments["amount"] for a in waiting.approvals] == [2]
        done = await agent.decide(waiting, {"call_1_2": "reject"}, on_approval=decide)
    assert str(done) == "Done."
    assert [a.arguments["amount"] for a in asked] == [1, 2]
    assert paid.calls == [{"amount": 1}]


def test_a_program_without_async_decides_too() -> None:
    agent, paid = cashier()
    waiting = agent.run_sync("Pay.")
    done = agent.decide_sync(waiting, {each.call_id: "approve" for each in waiting.approvals})
    assert (str(done), done.output, paid.calls) == ("Paid.", "Paid.", [{"amount": 80}])


def test_with_a_store_another_object_decides_later() -> None:
    with redis_server() as server:
        replies = [call("pay", amount=80).written, "{}", "Paid."]

        def agent() -> Agent:
            return Agent("cashier", tools=[pay], store=server.url, mock_responses=replies)

        waiting = asyncio.run(agent().run("Pay."))
        assert [each.call_id for each in waiting.approvals] == ["call_1_1"]
        done = asyncio.run(agent().decide(waiting.run_id, {"call_1_1": "approve"}))
        assert str(done) == "Paid."
    with pytest.raises(RunNotFound):
        Agent("other", mock_responses=["{}"]).decide_sync("run-1", {})


# ---- control


async def test_a_run_that_failed_is_resumed_once() -> None:
    model = ScriptedModel(call("len_of", text="abc"))
    agent = Agent("a", model=model, tools=[len_of])
    with pytest.raises(RunError) as caught:
        await agent.run("How long is abc?")
    assert caught.value.code == "mock_exhausted"
    model.then("It is 3 long.")
    resumed = await agent.resume(caught.value.run_id)
    assert str(resumed) == "It is 3 long."
    assert (await agent.resume(caught.value.run_id)).run_id == resumed.run_id
    with pytest.raises(NotResumable):
        await agent.resume(resumed.run_id)


async def test_each_queue_is_cleared_by_itself() -> None:
    agent, _ = cashier("One.", "Two.", "Three.")
    async with agent:
        runs = (await agent.start()).runs
        for is_queued in (False, True):
            first = await agent.begin("Hi", paused=True, session_id="s")
            while "offered" not in [r.event_type for r in await runs.records(first)]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            run_id = await agent.begin("And?", session_id="s") if is_queued else first
            for text in ("in French", "in Dutch"):
                await agent.steer(run_id, text)
                await agent.follow_up(run_id, f"then {text}")
            assert [m.message for m in await agent.clear_steering(run_id)] == [
                "in French",
                "in Dutch",
            ]
            assert [m.message for m in await agent.queued(run_id)] == [
                "then in French",
                "then in Dutch",
            ]
            assert not await agent.clear_steering(run_id)
            await agent.steer(run_id, "at last")
            cleared = await agent.clear_follow_ups(run_id)
            assert [m.message for m in cleared] == ["then in French", "then in Dutch"]
            assert [m.message for m in await agent.queued(run_id)] == ["at last"]
            for each in {first, run_id}:
                await agent.cancel(each)


async def test_a_step_ends_with_a_reply_that_cannot_be_used() -> None:
    paid = RecordedTool(pay)
    model = ScriptedModel(raw('{"tool":'), call("pay", amount=80), "Paid.")
    policy = [{"match": {"tool": "*"}, "do": "allow"}]
    async with Agent("cashier", model=model, tools=[paid], policy=policy) as agent:
        run_id = await agent.begin("Pay.", paused=True)
        first = await agent.step(run_id)
        assert [r.event_type for r in first][-2:] == ["model_reply", "action_error"]
        assert paid.calls == []
        second = await agent.step(run_id)
        assert [r.event_type for r in second] == ["model_reply", "tool_call", "tool_result"]
        assert [r.event_type for r in await agent.step(run_id)][-1] == "completed"


# ---- hooks


async def test_a_hook_that_raises_is_logged_once_and_its_words_reach_no_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def boom(_: CallInfo) -> None:
        raise ValueError("the account is 4711")

    agent, paid = cashier(call("pay", amount=80), "Not paid.", before_call=boom)
    result = await agent.run("Pay.")
    [denied] = [e for e in result.events if e.type == "tool_result"]
    assert denied.error == "denied"
    assert denied.text.startswith("denied: the hook boom failed")
    assert "4711" not in str(result.events)
    [logged] = [r for r in caplog.records if "boom" in r.getMessage()]
    assert logged.exc_info
    assert "4711" in str(logged.exc_info[1])
    assert paid.calls == []


async def test_the_messages_of_a_request_are_transformed_and_not_recorded() -> None:
    seen: list[int] = []

    def count(messages: list[Message]) -> None:
        seen.append(len(messages))

    async def whisper(messages: list[Message]) -> list[Message]:
        return [*messages[:-1], Message("user", messages[-1].content.replace("LOUD", "quiet"))]

    model = ScriptedModel("Yes.")
    agent = Agent("a", model=model, transform_context=[count, whisper], instructions="Be brief.")
    result = await agent.run("LOUD?", session_id="s")
    assert [("LOUD" in r[-1].content, "quiet" in r[-1].content) for r in model.requests] == [
        (False, True)
    ] * 2
    assert seen == [len(request) for request in model.requests]
    assert (await agent.memory.get_session_events("s"))[0].content == "LOUD?"
    assert result.text == "Yes."
    for given in ([], "text", [5], {"role": "user"}):
        wrong = Agent("a", model=ScriptedModel("x"), transform_context=lambda _, g=given: g)
        with pytest.raises(RunError, match="hook_failed"):
            await wrong.run("Hi")


async def test_a_question_is_an_event_and_answered_from_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def asking(_: Any, tool: Any, arguments: Any, context: Any) -> CallOutput:
        del tool, arguments
        form = {"type": "object", "properties": {"why": {"type": "string"}}}
        return CallOutput(str((await context.ask(InputRequest("form", "Why?", form))).content))

    monkeypatch.setattr(McpTools, "call", asking)
    agent, _ = cashier(call("pay", amount=1), "Done.")
    seen: list[Any] = []
    async with agent, asyncio.timeout(20):
        async for event in agent.stream("Pay.", session_id="s", on_approval=lambda _: "approve"):
            seen.append(event)
            if isinstance(event, InputRequestEvent):
                assert (event.kind, event.message, event.url) == ("form", "Why?", "")
                assert event.schema is not None
                with pytest.raises(InvalidRequest, match="why"):
                    await agent.answer(event_run(seen), event.call_id, "accept", {"why": 1})
                await agent.answer(event_run(seen), event.call_id, "accept", {"why": "x"})
        told = await agent.memory.get_session_events("s")
        assert "input_received" in [record.event_type for record in told]
        assert all("private" not in record.metadata for record in told)
    [answered] = [e for e in seen if isinstance(e, InputAnswerEvent)]
    assert (answered.call_id, answered.action) == ("call_1_1", "accept")
    [result] = [e.text for e in seen if isinstance(e, ToolResultEvent)]
    assert result == "{'why': 'x'}"


def event_run(events: list[Any]) -> str:
    return next(e.run_id for e in events if isinstance(e, RunStartEvent))
