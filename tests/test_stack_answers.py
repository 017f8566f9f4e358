"""Answers through real servers: never an action, direct, by a schema, in a child (loop.md §7)."""

import json

import pytest
from pydantic import BaseModel
from support.model_server import model_server, says
from support.stack import agent, box, call, frames, stage, stages, text_of

from diptych import Agent, RunError
from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import PeerConfig

ADD = call("add", a=1, b=2)
NATIVE = {"tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]}
CITY = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        pytest.param(["{}", ADD, ADD], "answer_not_given", id="calls"),
        pytest.param(["{}", f"I add.\n{ADD}", "{}"], "answer_not_given", id="after prose"),
    ],
)
async def test_a_run_whose_answer_is_an_action_twice_fails(replies, error):
    async with stage(*replies, tools=(box(add),)) as helper:
        ended = await helper.ended(await helper.start())
        assert (ended["status"], ended["error"]["code"]) == ("failed", error)
        assert (await helper.chat()).json()["error"]["code"] == error
        assert "agent_response" not in await helper.facts()
        assert "tool_call" not in await helper.facts()


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        pytest.param(["{}", ADD, "The answer"], "The answer", id="a call, then the answer"),
        pytest.param(["{}", NATIVE, "It is 3."], "It is 3.", id="a native call, then the answer"),
        pytest.param(["{}", '{"city": "Bonn"}'], '{"city": "Bonn"}', id="data"),
    ],
)
async def test_only_an_answer_is_told(replies, answer):
    async with stage(*replies, tools=(box(add),)) as helper:
        told = frames((await helper.chat(stream=True)).text)
        assert (text_of(told), told[-1].data) == (answer, "[DONE]")
        ended = await helper.ended(await helper.start())
        assert ended["answer"] == answer


DIRECT = RunSettings(answer_mode="direct")


@pytest.mark.parametrize(
    ("replies", "facts"),
    [
        pytest.param(["It is 3."], ["user_message", "agent_response"], id="at once"),
        pytest.param(
            [ADD, "It is 3."],
            ["user_message", "tool_call", "tool_result", "agent_response"],
            id="after a call",
        ),
    ],
)
async def test_in_direct_mode_prose_is_the_answer(replies, facts):
    async with stage(*replies, tools=(box(add),), loop=DIRECT) as helper:
        told = frames((await helper.chat(stream=True)).text)
        assert text_of(told) == "It is 3."
        assert await helper.facts() == facts


async def test_a_call_after_a_direct_answer_is_warned_of_and_not_made():
    async with stage(f"It is 3.\n{ADD}\n", tools=(box(add),), loop=DIRECT) as helper:
        told = frames((await helper.chat(stream=True)).text)
        assert text_of(told) == "It is 3.\n"
        assert [f.json["type"] for f in told if f.event == "progress"] == ["format_warning"]
        assert await helper.facts() == ["user_message", "agent_response"]


async def test_an_answer_by_a_schema_is_repaired_and_told_when_it_fits():
    replies = ["{}", "Bonn", '{"city": 1}', '```json\n{"city": "Bonn"}\n```']
    async with stage(*replies) as helper:
        run_id = await helper.start(output_schema=CITY)
        assert (await helper.ended(run_id))["answer"] == '{"city": "Bonn"}'
        text = (await helper.http.get(f"/v1/runs/{run_id}/events")).text
        told = [f.json["content"] for f in frames(text) if f.event == "text"]
        assert told == ['{"city": "Bonn"}']


async def test_an_answer_that_never_fits_fails_and_keeps_the_last_text():
    loop = RunSettings(output_schema=CITY, answer_repairs=1)
    async with stage("{}", "Bonn", "Still Bonn", loop=loop) as helper:
        ended = await helper.ended(await helper.start())
        assert ended["error"]["code"] == "invalid_output"
        assert ended["text"] == "Still Bonn"
        assert ended["error"]["message"].startswith("the answer does not fit its schema: it is not")


async def test_a_child_s_json_reaches_its_caller_as_a_value():
    use = [
        {"id": "a", "agent": "child", "task": "Where?"},
        {"tool": "echo", "arguments": {"text": "${a.city}"}},
    ]

    async def echo(text: str) -> str:
        return text

    front = agent(
        json.dumps(use),
        "{}",
        "ok",
        name="front",
        tools=(box(echo),),
        agents=(PeerConfig("child", "child"),),
    )
    child = agent("{}", '{"city": "Bonn"}', name="child", loop=RunSettings(output_schema=CITY))
    async with stages(front, child) as (asked, _):
        assert await asked.answer() == "ok"
        facts = await asked.memory()
        (response,) = [f for f in facts if f["event_type"] == "delegation_response"]
        assert response["metadata"]["value"] == {"city": "Bonn"}
        (result,) = [f for f in facts if f["event_type"] == "tool_result"]
        assert result["content"] == "Bonn"


async def test_a_child_s_answer_that_is_not_whole_says_so():
    task = json.dumps({"agent": "child", "task": "Tell."})
    async with model_server("{}", says("Half an ans", "length")) as theirs:
        front = agent(task, "{}", "ok", name="front", agents=(PeerConfig("child", "child"),))
        async with stages(front, agent(model=theirs, name="child")) as (asked, child):
            assert await asked.answer() == "ok"
            facts = await asked.memory()
            (response,) = [f for f in facts if f["event_type"] == "delegation_response"]
            assert response["metadata"]["finish_reason"] == "length"
            assert response["content"].startswith(
                "Half an ans\n\n[The answer of agent child is not"
            )
            assert "cut off by its model's length limit" in response["content"]
            assert (await child.memory())[-1]["metadata"]["finish_reason"] == "length"


class City(BaseModel):
    """A city."""

    city: str


async def test_python_gets_an_object():
    replies = ["{}", '{"city": "Bonn"}']
    async with Agent(name="a", mock_responses=replies) as helper:
        assert (await helper.run("Where?", output=City)).output == City(city="Bonn")
        assert (await helper.run("Where?", output=CITY)).output == {"city": "Bonn"}
        assert (await helper.run("Where?")).output == '{"city": "Bonn"}'


async def test_python_is_told_why_there_is_no_object():
    async with Agent(name="a", mock_responses=["{}", "x", "x"], answer_repairs=1) as helper:
        with pytest.raises(RunError) as caught:
            await helper.run("Where?", output=City)
        assert caught.value.code == "invalid_output"
    async with Agent(name="a", mock_responses=[ADD], max_steps=1, tools=[add]) as helper:
        with pytest.raises(RunError) as caught:
            await helper.run("Where?", output=City)
        assert caught.value.code == "max_steps"
