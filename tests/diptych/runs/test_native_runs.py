"""Runs whose model calls natively, from the request to the record; and endpoints that refuse it."""

from dataclasses import replace

from support.doubles import facts, house
from support.native_models import NativeModel, RefusingModel, native

from diptych.core.codec import NOT_IN_MEMORY_VIEW, Record
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
    assert changed.metadata == {"reason": "The model endpoint does not support tools."}
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
    assert items[-1].content == "The model endpoint does not support tools."


async def test_reasoning_is_kept_beside_native_calls_while_the_endpoint_may_want_it():
    for may_want in (None, False):
        at = rooms(calling(ThinkingModel), "native")
        at.model.wants_reasoning = may_want
        await at.ask()
        kept = [m.reasoning for m in at.model.asked[1].messages if m.calls]
        assert kept == ["I think." if may_want is None else ""]
