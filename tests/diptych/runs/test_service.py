"""Runs over doubles of their ports, in virtual time."""

import asyncio

import pytest
from support.doubles import FunctionTools, ListeningModel, facts, house, tool, types
from support.stories import virtually

from diptych.core.codec import Record
from diptych.core.errors import (
    Overloaded,
    RunLost,
)
from diptych.core.messages import CallOutput, Message
from diptych.core.run_settings import RunSettings
from diptych.ports import Model, Notice
from diptych.runs.definition import AgentDefinition
from diptych.runs.request import RunRequest
from diptych.stores.memory.store import Bounds


async def echo(text=""):
    return text


async def slow(seconds=1.0, value=0):
    await asyncio.sleep(seconds)
    return value


async def forever(**_):
    await asyncio.Event().wait()


def end(items):
    return items[-1]


TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
ECHO = '{"tool": "echo", "arguments": {"text": "hello"}}'


async def test_a_tool_call_is_told_step_by_step():
    told = await house(ECHO, "{}", "It said: hello", tools={"echo": echo}).ask()
    assert facts(told) == ["user_message", "tool_call", "tool_result", "agent_response"]
    assert types(told)[2:5] == ["model_reply", "[progress]", "tool_call"]
    assert [i.seq for i in told if isinstance(i, Record)] == list(range(1, 12))
    progress = next(i for i in told if isinstance(i, Notice))
    assert progress.fields == {
        "step": 1,
        "max_steps": 5,
        "action": "tool_call",
        "target": "echo",
    }


async def test_a_delegation_is_told_step_by_step():
    async def find(request, progress):
        progress("looking")
        return "qubits"

    rooms = house(
        *('{"agent": "researcher", "task": "look"}', "{}", "Qubits."),
        agents={"researcher": find},
        definition=AgentDefinition(deadline=300),
    )
    told = await rooms.ask("What?", path=("http://a",), traceparent=TRACE)
    assert facts(told)[1:3] == ["delegation_request", "delegation_response"]
    (request,) = rooms.agents.delegations
    recorded = next(i for i in told if getattr(i, "event_type", "") == "delegation_request")
    assert recorded.metadata["context_id"] == request.context_id
    assert request.path == ("http://a",)
    assert request.traceparent == TRACE
    assert request.context == (Message("user", "What?"),)
    assert 0 < request.seconds_left <= 300
    about = {"call_id": "call_1_1", "target": "researcher", "path": ["call_1_1"]}
    assert Notice("delegation_progress", {**about, "content": "looking"}) in told


@virtually
async def test_two_tools_that_take_a_second_each_take_one_second_together():
    rooms = house('[{"tool": "slow"}, {"tool": "slow"}]', "{}", "x", tools={"slow": slow})
    before = asyncio.get_running_loop().time()
    await rooms.ask()
    assert 1.0 <= asyncio.get_running_loop().time() - before < 1.1


@virtually
async def test_events_are_recorded_as_they_happen_and_results_told_as_they_were_asked():
    calls = (
        '[{"tool": "slow", "arguments": {"seconds": 3, "value": "late"}},'
        ' {"tool": "slow", "arguments": {"seconds": 1, "value": "early"}}]'
    )
    rooms = house(calls, "{}", "x", tools={"slow": slow})
    told = await rooms.ask()
    results = [i.content for i in told if getattr(i, "event_type", "") == "tool_result"]
    model_heard = rooms.model.requests[1][-1].content
    assert results == ["early", "late"]
    assert model_heard.index("late") < model_heard.index("early")


@virtually
async def test_text_that_arrives_within_25_ms_is_one_event():
    rooms = house("{}", {"content": "a b c d e f g h i j", "chunk_ms": 5})
    texts = [i.content for i in await rooms.ask() if getattr(i, "event_type", "") == "text"]
    assert texts[0] == "a "
    assert "".join(texts) == "a b c d e f g h i j"
    assert len(texts) <= 4


@virtually
async def test_runs_of_a_session_go_one_after_another_and_continue_it():
    rooms = house('{"tool": "slow"}', "{}", "done", tools={"slow": slow})
    asks = [
        RunRequest((Message("user", text),), session_id="s") for text in ("one", "two", "three")
    ]
    entries = [await rooms.runs.start(ask) for ask in asks]
    await asyncio.gather(*(rooms.told(entry.run_id) for entry in entries))
    asked = [heard[1:] for heard in rooms.model.requests[::3]]
    said = [[m.content.partition("\n")[0] for m in heard if m.role == "user"] for heard in asked]
    assert said[0] == ["one"]
    assert said[1][0::2] == ["one", "two"]
    assert said[2][-1] == "three"
    assert rooms.tools.called == [("slow", {})] * 3


async def test_the_system_message_of_a_caller_holds_for_its_run_only():
    rooms = house("{}", "x")
    await rooms.ask("one", session_id="s", system="Rhyme.")
    await rooms.ask("two", session_id="s")
    assert rooms.model.requests[0][0].content.endswith("Rhyme.")
    assert "Rhyme." not in rooms.model.requests[2][0].content


@virtually
async def test_a_queued_run_can_be_cancelled_and_the_next_one_still_waits_its_turn():
    rooms = house('{"tool": "slow"}', "{}", "x", tools={"slow": slow})
    asks = [
        await rooms.runs.start(RunRequest((Message("user", t),), session_id="s")) for t in "abc"
    ]
    await asyncio.sleep(0.1)
    ended = await rooms.runs.cancel(asks[1].run_id)
    assert (await rooms.runs.entry(asks[0].run_id)).status == "running"
    assert (await rooms.runs.entry(asks[2].run_id)).status == "queued"
    await rooms.told(asks[2].run_id)
    told = await rooms.told(asks[1].run_id)
    assert ended.status == "aborted"
    assert types(told) == ["user_message", "aborted"]
    assert len(rooms.tools.called) == 2


@virtually
async def test_a_model_is_told_what_its_run_has_left():
    left = []

    class Waits(ListeningModel):
        async def complete(self, request):
            left.append(request.seconds_left)
            await asyncio.sleep(2)
            return await super().complete(request)

    model, definition = Waits(ECHO, "{}", "Done."), AgentDefinition(deadline=60)
    await house(model=model, tools={"echo": echo}, definition=definition).ask()
    assert left == pytest.approx([60, 58], abs=0.1)


async def test_a_bug_in_a_tool_adapter_is_a_result_too(caplog):
    async def buggy():
        raise ZeroDivisionError

    told = await house('{"tool": "buggy"}', "{}", "Sorry.", tools={"buggy": buggy}).ask()
    assert facts(told) == ["user_message", "tool_call", "tool_error", "agent_response"]
    assert "ZeroDivisionError" not in str(told)
    assert "ZeroDivisionError" in caplog.text


async def test_a_bug_in_the_model_adapter_ends_the_run_and_not_the_process(caplog):
    class Buggy(Model):
        async def complete(self, request):
            raise ZeroDivisionError

    told = await house(model=Buggy()).ask()
    assert end(told).metadata["code"] == "internal_error"
    assert "ZeroDivisionError" not in end(told).content
    assert "ZeroDivisionError" in caplog.text


async def test_a_tool_that_is_cancelled_from_within_hangs_nobody():
    async def lost():
        raise asyncio.CancelledError

    told = await house('{"tool": "lost"}', "{}", "Sorry.", tools={"lost": lost}).ask()
    assert end(told).event_type == "completed"


async def test_a_result_over_1_mib_is_cut_with_a_mark_and_has_no_value():
    async def long():
        return CallOutput("ü" * 2**20, {"text": "ü" * 2**20})

    told = await house('{"tool": "long"}', "{}", "x", tools={"long": long}).ask()
    result = next(i for i in told if getattr(i, "event_type", "") == "tool_result")
    assert result.content == "ü" * 2**19 + "\n[cut: 1048576 of 2097152 bytes shown]"
    assert "value" not in result.metadata


@pytest.mark.parametrize("value", [2**70, float("nan"), "caf\ud83d", ["x" * 2**21]], ids=str)
async def test_a_value_that_no_record_can_hold_leaves_its_text(value):
    async def odd():
        return CallOutput("odd", value)

    told = await house('{"tool": "odd"}', "{}", "x", tools={"odd": odd}).ask()
    assert end(told).event_type == "completed"


@virtually
async def test_a_callers_deadline_counts_from_its_request_on():
    rooms = house('{"tool": "slow", "arguments": {"seconds": 9}}', tools={"slow": slow})
    await rooms.runs.start(RunRequest((Message("user", "a"),), session_id="s"))
    before = asyncio.get_running_loop().time()
    told = await rooms.ask("b", session_id="s", seconds=2)
    assert asyncio.get_running_loop().time() - before == pytest.approx(2, abs=0.1)
    assert end(told).metadata["code"] == "deadline_exceeded"


async def test_thoughts_of_two_replies_do_not_run_into_each_other():
    told = await house("<think>a</think>{}", "<think>b</think><think>c</think>Hello").ask()
    notices = [i.fields["content"] for i in told if isinstance(i, Notice) and i.type == "reasoning"]
    assert "".join(notices) == "a\n\nb\n\nc"


async def test_offers_are_fixed_when_a_run_starts():
    tools = FunctionTools({"echo": echo, "late": echo}, (tool("echo"),))

    async def grow(**_):
        tools.tools = (tool("echo"), tool("late"))
        return "grown"

    tools.functions["echo"] = grow
    told = await house(ECHO, '{"tool": "late"}', "{}", "x", tools=tools).ask()
    assert facts(told)[3] == "action_error"


async def test_there_is_a_bound_on_unfinished_runs():
    definition = AgentDefinition(max_runs=2)
    rooms = house('{"tool": "forever"}', tools={"forever": forever}, definition=definition)
    request = RunRequest((Message("user", "hi"),))
    for _ in range(2):
        await rooms.runs.start(request)
    with pytest.raises(Overloaded, match="2 unfinished runs"):
        await rooms.runs.start(request)
    await rooms.runs.close()


@virtually
async def test_closing_lets_runs_end_and_then_aborts_what_is_left():
    call = '{"tool": "slow", "arguments": {"seconds": 3}}'
    rooms = house(call, "{}", "x", tools={"slow": slow})
    short = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    await asyncio.sleep(2)
    late = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    await rooms.runs.close(2)
    with pytest.raises(Overloaded):
        await rooms.ask()
    statuses = [(await rooms.runs.entry(entry.run_id)).status for entry in (short, late)]
    assert statuses == ["completed", "aborted"]


async def test_the_oldest_finished_runs_make_room_and_that_is_said(caplog):
    rooms = house("{}", "x", bounds=Bounds(sessions=3))
    runs = [end(await rooms.ask()).run_id for _ in range(5)]
    assert [e.run_id for e in reversed(await rooms.runs.entries())] == runs[2:]
    assert "dropped" in caplog.text
    with pytest.raises(RunLost):
        await rooms.runs.entry(runs[0])


async def test_what_many_runs_share_is_kept_once_and_goes_with_the_last():
    rooms = house("{}", "x", bounds=Bounds(sessions=2))
    for _ in range(4):
        await rooms.ask()
    assert len(rooms.store._blobs) == 1
    for entry in await rooms.store.sessions():
        assert await rooms.store.delete(entry.session_id)
    assert rooms.store._blobs == {}
    assert rooms.store._size == 0
    assert rooms.store._events == 0


@virtually
async def test_a_warning_comes_after_the_reply_that_it_is_about():
    misread = '{"tool": "nope"}'
    rooms = house(
        misread, misread, "So.", definition=AgentDefinition("", RunSettings(max_retries=1))
    )
    heard = types(await rooms.ask())
    last = len(heard) - 1 - heard[::-1].index("action_error")
    assert heard.index("[format_warning]") > last, heard
