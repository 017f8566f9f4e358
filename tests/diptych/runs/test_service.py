"""Runs over doubles of their ports, in virtual time."""

import asyncio

import pytest
from support.doubles import FunctionAgents, FunctionTools, ListeningModel, facts, house, tool, types
from support.virtual_time import run_virtually

from diptych.core.codec import Record
from diptych.core.errors import (
    ModelError,
    Overloaded,
    RunLost,
    ToolError,
)
from diptych.core.messages import CallOutput, Message
from diptych.core.reducer import replay
from diptych.ports import Delta, Model, Notice, Reply
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
        '{"agent": "researcher", "task": "look"}',
        "{}",
        "Qubits.",
        agents={"researcher": find},
        definition=AgentDefinition(deadline=300),
    )
    told = await rooms.ask("What?", path=("http://a",), traceparent=TRACE)
    assert facts(told) == [
        "user_message",
        "delegation_request",
        "delegation_response",
        "agent_response",
    ]
    (request,) = rooms.agents.delegations
    recorded = next(i for i in told if getattr(i, "event_type", "") == "delegation_request")
    assert recorded.metadata["context_id"] == request.context_id
    assert request.path == ("http://a",)
    assert request.traceparent == TRACE
    assert request.context == (Message("user", "What?"),)
    assert 0 < request.seconds_left <= 300
    assert (
        Notice(
            "delegation_progress",
            {
                "call_id": "call_1_1",
                "target": "researcher",
                "path": ["call_1_1"],
                "content": "looking",
            },
        )
        in told
    )


async def test_a_trace_that_is_none_goes_nowhere():
    async def find(request, progress):
        return "x"

    rooms = house('{"agent": "r", "task": "look"}', "{}", "x", agents={"r": find})
    await rooms.ask(traceparent="nonsense\r\n")
    assert rooms.agents.delegations[0].traceparent is None


def test_two_tools_that_take_a_second_each_take_one_second_together():
    async def both():
        rooms = house('[{"tool": "slow"}, {"tool": "slow"}]', "{}", "x", tools={"slow": slow})
        before = asyncio.get_running_loop().time()
        await rooms.ask()
        return asyncio.get_running_loop().time() - before

    assert 1.0 <= run_virtually(both()) < 1.1


def test_events_are_recorded_as_they_happen_and_results_told_as_they_were_asked():
    async def race():
        calls = (
            '[{"tool": "slow", "arguments": {"seconds": 3, "value": "late"}},'
            ' {"tool": "slow", "arguments": {"seconds": 1, "value": "early"}}]'
        )
        rooms = house(calls, "{}", "x", tools={"slow": slow})
        told = await rooms.ask()
        results = [i.content for i in told if getattr(i, "event_type", "") == "tool_result"]
        return results, rooms.model.requests[1][-1].content

    results, model_heard = run_virtually(race())
    assert results == ["early", "late"]
    assert model_heard.index("late") < model_heard.index("early")


async def test_a_tool_that_fails_is_a_result_that_the_model_sees():
    async def broken():
        raise ToolError("timeout", "no answer within 60 s")

    rooms = house('{"tool": "broken"}', "{}", "Sorry.", tools={"broken": broken})
    told = await rooms.ask()
    assert facts(told) == ["user_message", "tool_call", "tool_error", "agent_response"]
    assert "no answer within 60 s" in rooms.model.requests[1][-1].content


async def test_a_run_goes_on_when_nobody_listens():
    rooms = house(ECHO, "{}", "x", tools={"echo": echo})
    entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    assert entry.status == "queued"
    await rooms.runs.close(1)
    assert (await rooms.runs.entry(entry.run_id)).status == "completed"


async def test_every_reader_sees_the_same_from_any_point():
    rooms = house(ECHO, "{}", "one two three", tools={"echo": echo})
    told = await rooms.ask()
    records = [item for item in told if isinstance(item, Record)]
    for after in range(len(records) + 1):
        assert await rooms.told(records[0].run_id, after) == records[after:]


def test_text_that_arrives_within_25_ms_is_one_event():
    async def fast():
        rooms = house("{}", {"content": "a b c d e f g h i j", "chunk_ms": 5})
        return [i.content for i in await rooms.ask() if getattr(i, "event_type", "") == "text"]

    texts = run_virtually(fast())
    assert texts[0] == "a "
    assert "".join(texts) == "a b c d e f g h i j"
    assert len(texts) <= 4


def test_runs_of_a_session_go_one_after_another_and_continue_it():
    async def three():
        rooms = house('{"tool": "slow"}', "{}", "done", tools={"slow": slow})
        asks = [
            RunRequest((Message("user", text),), session_id="s") for text in ("one", "two", "three")
        ]
        entries = [await rooms.runs.start(ask) for ask in asks]
        await asyncio.gather(*(rooms.told(entry.run_id) for entry in entries))
        return rooms, [list(await rooms.store.read(e.run_id)) for e in entries]

    rooms, _ = run_virtually(three())
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


def test_an_abort_cancels_the_call_and_records_it_as_interrupted():
    async def stop():
        rooms = house('{"tool": "forever"}', "{}", "x", tools={"forever": forever})
        entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
        await asyncio.sleep(1)
        before = asyncio.get_running_loop().time()
        ended = await rooms.runs.cancel(entry.run_id, "enough")
        took = asyncio.get_running_loop().time() - before
        return rooms, ended, took, await rooms.told(entry.run_id)

    rooms, ended, took, told = run_virtually(stop())
    assert ended.status == "aborted"
    assert took < 1
    assert rooms.tools.cancelled == ["forever"]
    assert facts(told)[-2:] == ["tool_error", "aborted"]
    assert told[-2].metadata["error"] == "interrupted"


def test_a_queued_run_can_be_cancelled_and_the_next_one_still_waits_its_turn():
    async def stop():
        rooms = house('{"tool": "slow"}', "{}", "x", tools={"slow": slow})
        asks = [
            await rooms.runs.start(RunRequest((Message("user", t),), session_id="s")) for t in "abc"
        ]
        await asyncio.sleep(0.1)
        ended = await rooms.runs.cancel(asks[1].run_id)
        assert (await rooms.runs.entry(asks[0].run_id)).status == "running"
        assert (await rooms.runs.entry(asks[2].run_id)).status == "queued"
        await rooms.told(asks[2].run_id)
        return rooms, ended, await rooms.told(asks[1].run_id)

    rooms, ended, told = run_virtually(stop())
    assert ended.status == "aborted"
    assert types(told) == ["user_message", "aborted"]
    assert len(rooms.tools.called) == 2


async def test_cancelling_a_run_that_has_ended_changes_nothing():
    rooms = house("{}", "x")
    told = await rooms.ask()
    assert (await rooms.runs.cancel(end(told).run_id)).status == "completed"
    assert await rooms.told(end(told).run_id) == told


def test_the_deadline_ends_a_run_wherever_it_is():
    async def late():
        definition = AgentDefinition(deadline=5)
        rooms = house('{"tool": "forever"}', tools={"forever": forever}, definition=definition)
        before = asyncio.get_running_loop().time()
        told = await rooms.ask()
        return asyncio.get_running_loop().time() - before, told

    took, told = run_virtually(late())
    assert 5 <= took < 6.1
    assert end(told).event_type == "failed"
    assert end(told).metadata["code"] == "deadline_exceeded"


def test_a_model_is_told_what_its_run_has_left():
    left = []

    class Waits(ListeningModel):
        async def complete(self, request):
            left.append(request.seconds_left)
            await asyncio.sleep(2)
            return await super().complete(request)

    async def main(deadline):
        model = Waits(ECHO, "{}", "Done.")
        definition = AgentDefinition(deadline=deadline)
        await house(model=model, tools={"echo": echo}, definition=definition).ask()

    run_virtually(main(60))
    assert left == pytest.approx([60, 58], abs=0.1)


async def test_a_model_that_fails_in_the_middle_of_its_answer_fails_the_run():
    class Cut(Model):
        async def complete(self, request):
            return Reply("{}")

        async def stream(self, request):
            yield Delta("Hel")
            raise ModelError("model_cut", "the reply ended in the middle")

    told = await house(model=Cut()).ask()
    assert types(told)[-2:] == ["text", "failed"]
    assert end(told).metadata["code"] == "model_cut"


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


def test_a_callers_deadline_counts_from_its_request_on():
    async def late():
        rooms = house('{"tool": "slow", "arguments": {"seconds": 9}}', tools={"slow": slow})
        await rooms.runs.start(RunRequest((Message("user", "a"),), session_id="s"))
        before = asyncio.get_running_loop().time()
        told = await rooms.ask("b", session_id="s", seconds=2)
        return asyncio.get_running_loop().time() - before, told

    took, told = run_virtually(late())
    assert took == pytest.approx(2, abs=0.1)
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


async def test_a_log_replayed_is_the_run_again():
    rooms = house(ECHO, "{}", "It said hello", tools={"echo": echo})
    told = await rooms.ask(session_id="s")
    await rooms.runs.close()
    run = replay(await rooms.events(end(told).run_id))
    assert run.messages == await rooms.store.conversation("s")


async def test_there_is_a_bound_on_unfinished_runs():
    definition = AgentDefinition(max_runs=2)
    rooms = house('{"tool": "forever"}', tools={"forever": forever}, definition=definition)
    request = RunRequest((Message("user", "hi"),))
    for _ in range(2):
        await rooms.runs.start(request)
    with pytest.raises(Overloaded, match="2 unfinished runs"):
        await rooms.runs.start(request)
    await rooms.runs.close()


def test_closing_lets_runs_end_and_then_aborts_what_is_left():
    async def close():
        rooms = house(
            '{"tool": "slow", "arguments": {"seconds": 3}}', "{}", "x", tools={"slow": slow}
        )
        short = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
        await asyncio.sleep(2)
        late = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
        await rooms.runs.close(2)
        with pytest.raises(Overloaded):
            await rooms.ask()
        return [(await rooms.runs.entry(e.run_id)).status for e in (short, late)]

    assert run_virtually(close()) == ["completed", "aborted"]


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


async def test_delegations_side_by_side_have_contexts_of_their_own():
    async def find(request, progress):
        return request.task

    agents = FunctionAgents({"r": find})
    calls = '[{"agent": "r", "task": "1"}, {"agent": "r", "task": "2"}]'
    await house(calls, "{}", "x", agents=agents).ask()
    assert len({request.context_id for request in agents.delegations}) == 2
