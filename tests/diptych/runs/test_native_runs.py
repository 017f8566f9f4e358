"""Runs whose model calls natively, from the request to the record; and endpoints that refuse it."""

import asyncio
from dataclasses import replace

import pytest
from support.doubles import FunctionTools, facts, house, tool
from support.native_models import NativeModel, RefusingModel, native
from support.replicas import ask, replica, told
from support.shared_store import SharedStore
from support.virtual_time import run_virtually

from diptych.core.codec import NOT_IN_MEMORY_VIEW, Record
from diptych.core.messages import Message
from diptych.core.run_settings import RunSettings
from diptych.runs.catalog_recorder import starting_format
from diptych.runs.definition import AgentDefinition


async def _echo(text=""):
    return f"echo: {text}"


async def _write(request, progress):
    return f"written: {request.task}"


class ThinkingModel(NativeModel):
    """Its endpoint may want its reasoning back."""

    wants_reasoning = None

    async def complete(self, request):
        return replace(await super().complete(request), reasoning="I think.")


def records(items):
    return [item for item in items if isinstance(item, Record)]


def rooms(model, action_format, **settings):
    definition = AgentDefinition("Be brief.", RunSettings(action_format=action_format, **settings))
    return house(
        model=model, tools={"echo": _echo}, agents={"writer": _write}, definition=definition
    )


def calling(model=NativeModel):
    calls = native("echo", "a", text="x"), native("delegate_to_writer", "b", task="Write.")
    return model(calls, "I know.", "It is x.")


async def test_native_calls_are_made_and_recorded_as_any_others():
    at = rooms(calling(), "native")
    items = records(await at.ask())
    assert sorted(facts(items)[1:5]) == [
        "delegation_request", "delegation_response", "tool_call", "tool_result",
    ]  # fmt: skip
    assert [item.content for item in items if item.event_type == "agent_response"] == ["It is x."]
    assert at.tools.called == [("echo", {"text": "x"})]
    assert [(m.role, m.call_id) for m in at.model.asked[1].messages[-2:]] == [
        ("tool", "a"),
        ("tool", "b"),
    ]


async def test_a_session_goes_on_in_either_format():
    at = rooms(calling(), "native")
    await at.ask(session_id="s")
    await at.ask(session_id="s")
    assert [m.role for m in at.model.asked[2].messages] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip


async def test_an_agent_that_is_told_the_conversation_reads_it_as_text():
    model = NativeModel(
        (native("echo", "a", text="x"),),
        (native("delegate_to_writer", "a", task="Write."),),
        "I know.",
        "So.",
    )
    at = rooms(model, "native")
    await at.ask()
    (request,) = at.agents.delegations
    assert [m.role for m in request.context] == ["user", "assistant", "user"]
    assert "echo: x" in request.context[-1].content


async def test_auto_goes_on_in_json_when_tools_are_refused_and_says_so_once():
    call = '{"tool": "echo", "arguments": {"text": "x"}}'
    at = rooms(RefusingModel(call, "{}", "It is x."), "auto")
    items = records(await at.ask(session_id="s"))
    (changed,) = [item for item in items if item.event_type == "action_format"]
    assert changed.content == "json"
    assert changed.metadata == {"reason": "The model endpoint takes no tools."}
    assert items[-1].event_type == "completed"
    assert "action_format" in NOT_IN_MEMORY_VIEW
    assert at.tools.called == [("echo", {"text": "x"})]
    offered = next(item for item in items if item.event_type == "offered")
    assert offered.metadata["action_format"] == "native"


async def test_the_process_remembers_a_refusal():
    at = rooms(RefusingModel("{}", "So."), "auto")
    assert starting_format(RunSettings(action_format="auto"), at.model) == "native"
    await at.ask()
    assert starting_format(RunSettings(action_format="auto"), at.model) == "json"
    items = records(await at.ask())
    assert "action_format" not in {item.event_type for item in items}
    offered = next(item for item in items if item.event_type == "offered")
    assert "action_format" not in offered.metadata


async def test_an_agent_that_is_native_by_order_fails_with_a_sentence():
    at = rooms(RefusingModel("{}", "So."), "native")
    items = records(await at.ask())
    assert items[-1].event_type == "failed"
    assert items[-1].metadata == {"code": "tools_refused"}
    assert items[-1].content == "The model endpoint takes no tools."


@pytest.mark.parametrize("action_format", ["json", "native", "auto"])
async def test_a_script_of_texts_means_the_same_in_every_format(action_format):
    at = rooms(
        NativeModel('{"tool": "echo", "arguments": {"text": "x"}}', "{}", "So."), action_format
    )
    assert facts(await at.ask()) == ["user_message", "tool_call", "tool_result", "agent_response"]


async def test_native_calls_under_json_are_made_rather_than_lost():
    at = rooms(calling(), "json")
    assert facts(await at.ask())[-1] == "agent_response"
    assert at.tools.called == [("echo", {"text": "x"})]
    assert at.model.asked[1].tools == ()


async def test_the_tools_are_made_once_for_many_runs():
    at = rooms(calling(), "native")
    await at.ask()
    await at.ask()
    first, *_, last = at.model.asked
    assert first.tools is last.tools


@pytest.mark.parametrize(
    ("after", "calls"),
    [
        pytest.param(1, 2, id="in a tool that may be called twice"),
        pytest.param(4.5, 1, id="in a model call"),
        pytest.param(8, 1, id="in the answer"),
    ],
)
def test_a_run_whose_owner_is_killed_goes_on_at_another(after, calls):
    called = []

    async def look():
        called.append("look")
        await asyncio.sleep(3)
        return "seen"

    def begin(store, name):
        model = ThinkingModel(
            (native("look", "x"), native("look", "y")),
            {"content": "I know.", "delay_ms": 3000},
            {"content": "one two three four", "chunk_ms": 1000},
        )
        tools = FunctionTools({"look": look}, (tool("look", read_only=True),))
        definition = AgentDefinition("", RunSettings(action_format="native"))
        return replica(store, name, model=model, tools=tools, definition=definition)

    async def story():
        store = SharedStore()
        a, b = begin(store, "a"), begin(store, "b")
        run_id = (await a.run(a.runs.start(ask("hi", "s")))).run_id
        await asyncio.sleep(after)
        a.kill()
        items = await told(b, run_id)
        await asyncio.sleep(1)
        return items, store.conversation("s"), [*a.model.asked, *b.model.asked]

    items, conversation, asked = run_virtually(story())
    assert items[-1].event_type == "completed"
    assert "owner_changed" in {item.event_type for item in records(items)}
    assert conversation == (
        Message("user", "hi"),
        Message("assistant", "", (native("look", "x"), native("look", "y")), reasoning="I think."),
        Message("tool", "seen", call_id="x"),
        Message("tool", "seen", call_id="y"),
        Message("assistant", "one two three four"),
    )
    assert len(called) == calls
    assert {r.messages for r in asked if r.index == 1} == {conversation[:4]}
