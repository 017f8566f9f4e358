"""Calls of a tool whose server was away from the start: results, and never part of an answer."""

from typing import Any

import pytest
from support.doubles import House, facts, house
from support.native_models import NativeModel, native

from diptych.core.catalog import Unavailable
from diptych.core.codec import Record
from diptych.core.events import RunSettings
from diptych.runs.definition import AgentDefinition

NEVER_CONNECTED = Unavailable("server", "files", "connection refused")
FORMS = {
    "own": '{"tool": "NAME", "arguments": {"q": "x"}}',
    "own, without arguments": '{"tool": "NAME"}',
    "in a fence": '```json\n{"tool": "NAME", "arguments": {"q": "x"}}\n```',
    "a name and arguments": '{"name": "NAME", "arguments": {"q": "x"}}',
    "a name and parameters": '{"name": "NAME", "parameters": {"q": "x"}}',
    "OpenAI's": '{"tool_calls": [{"id": "a", "type": "function", "function": {"name": "NAME", '
    '"arguments": "{}"}}]}',
    "Hermes": '<tool_call>\n{"name": "NAME", "arguments": {"q": "x"}}\n</tool_call>',
    "Mistral": '[TOOL_CALLS][{"name": "NAME", "arguments": {"q": "x"}}]',
    "Llama": '<|python_tag|>{"name": "NAME", "parameters": {"q": "x"}}',
    "ReAct": 'Action: NAME\nAction Input: {"q": "x"}',
    "gpt-oss": '<|channel|>commentary to=functions.NAME<|message|>{"q": "x"}<|call|>',
}


async def _echo(text: str = "") -> str:
    return text


def rooms(*replies: Any, action_format: Any = "json", **settings: Any) -> House:
    run = RunSettings(action_format=action_format, **settings)
    at = house(
        model=NativeModel(*replies),
        tools={"echo": _echo},
        definition=AgentDefinition("Be brief.", run),
    )
    at.tools.unavailable = (NEVER_CONNECTED,)
    return at


async def asked(at: House) -> list[Record]:
    return [item for item in await at.ask() if isinstance(item, Record)]


@pytest.mark.parametrize("mode", ["separate", "direct"])
@pytest.mark.parametrize("name", ["lookup", "files__lookup"])
@pytest.mark.parametrize("form", FORMS)
async def test_in_phase_1_it_is_a_result_that_names_the_server(
    form: str, name: str, mode: Any
) -> None:
    at = rooms(FORMS[form].replace("NAME", name), "{}", "I can not.", answer_mode=mode)
    items = await asked(at)
    assert facts(items) == ["user_message", "tool_error", "agent_response"]
    assert items[-2].content == "I can not."
    said = next(item.content for item in items if item.event_type == "tool_error")
    hint = "" if name.startswith("files") else "; tools available: echo"
    assert said == f"unavailable: files{hint}"


@pytest.mark.parametrize("name", ["lookup", "files__lookup"])
@pytest.mark.parametrize("form", FORMS)
async def test_in_phase_2_it_is_no_answer(form: str, name: str) -> None:
    at = rooms("{}", FORMS[form].replace("NAME", name), "I can not.")
    items = await asked(at)
    assert facts(items) == ["user_message", "agent_response"]
    assert items[-2].content == "I can not."


async def test_a_native_call_of_it_is_a_result_too() -> None:
    at = rooms((native("lookup", q="x"),), "I know.", "I can not.", action_format="native")
    items = await asked(at)
    assert facts(items) == ["user_message", "tool_error", "agent_response"]
    told = at.model.asked[1].messages[-1].content
    assert told.endswith("unavailable: files; tools available: echo")
