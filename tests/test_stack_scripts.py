"""The three scripts of loop.md §10, through real servers: exactly the events listed there."""

import asyncio
import json
from typing import Any

import pytest
from support.stack import Stage, agent, call, frames, stages, text_of, tool_server, until

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import PeerConfig

ECHO_SCRIPT = (call("echo", text="hello"), "{}", "The echo returned: hello")
RESEARCH_SCRIPT = (
    json.dumps({"agent": "researcher", "task": "Find out about qubits"}),
    "{}",
    "Based on the research, qubits are odd.",
)
TALK_SCRIPT = ("{}", "Hello! How can I help you?")


async def echo(text: str) -> str:
    """Say a text again."""
    return text


async def streamed(stage: Stage) -> str:
    response = await stage.chat(stream=True)
    assert response.status_code == 200, response.text
    return text_of(frames(response.text))


async def asked_over_runs(stage: Stage) -> str:
    run = await stage.ended(await stage.start())
    return str(run["answer"])


ASKS = [
    pytest.param(Stage.answer, id="a chat"),
    pytest.param(streamed, id="a streamed chat"),
    pytest.param(asked_over_runs, id="a run"),
]


@pytest.mark.parametrize("ask", ASKS)
async def test_an_echo_is_a_call_and_a_result(ask: Any) -> None:
    async with (
        tool_server(echo) as box,
        stages(agent(*ECHO_SCRIPT, tools=(box,))) as (helper,),
    ):
        assert await ask(helper) == "The echo returned: hello"
        facts = await helper.memory()
        assert [event["event_type"] for event in facts] == [
            "user_message",
            "tool_call",
            "tool_result",
            "agent_response",
        ]
        assert facts[1]["content"] == {"tool": "echo", "arguments": {"text": "hello"}}
        assert facts[2]["content"] == "hello"
        assert facts[3]["content"] == "The echo returned: hello"


@pytest.mark.parametrize("ask", ASKS)
async def test_a_delegation_is_a_request_and_a_response(ask: Any) -> None:
    coordinator = agent(
        *RESEARCH_SCRIPT, name="coordinator", agents=(PeerConfig("researcher", "researcher"),)
    )
    researcher = agent("{}", "They are in two states.", name="researcher")
    async with stages(coordinator, researcher) as (front, back):
        assert await ask(front) == "Based on the research, qubits are odd."
        facts = await front.memory()
        assert [event["event_type"] for event in facts] == [
            "user_message",
            "delegation_request",
            "delegation_response",
            "agent_response",
        ]
        assert facts[1]["content"] == {"agent": "researcher", "task": "Find out about qubits"}
        assert facts[2]["content"] == "They are in two states."
        theirs = await back.memory()
        assert [event["event_type"] for event in theirs] == ["user_message", "agent_response"]
        assert theirs[0]["content"] == "Find out about qubits"
        assert theirs[0]["session_id"] == facts[1]["metadata"]["context_id"]


@pytest.mark.parametrize("ask", ASKS)
async def test_a_plain_answer_is_a_question_and_an_answer(ask: Any) -> None:
    async with stages(agent(*TALK_SCRIPT)) as (helper,):
        assert await ask(helper) == "Hello! How can I help you?"
        assert await helper.facts() == ["user_message", "agent_response"]


NATIVE_ECHO = {"content": "", "tool_calls": [{"name": "echo", "arguments": {"text": "hello"}}]}


@pytest.mark.parametrize("ask", ASKS[:2])
@pytest.mark.parametrize(
    ("again", "loop", "event", "made"),
    [
        pytest.param(ECHO_SCRIPT[0], {}, "tool_result", 2, id="a tool"),
        pytest.param(NATIVE_ECHO, {}, "tool_result", 2, id="natively"),
        pytest.param(ECHO_SCRIPT[0], {"answer_mode": "direct"}, "tool_result", 2, id="directly"),
        pytest.param(ECHO_SCRIPT[0], {"max_steps": 12}, "tool_result", 2, id="in many steps"),
        pytest.param(RESEARCH_SCRIPT[0], {}, "delegation_response", 5, id="an agent"),
    ],
)
async def test_a_script_that_repeats_its_call_ends_with_the_text_of_max_steps(
    ask: Any, again: Any, loop: Any, event: str, made: int
) -> None:
    settings, peer = RunSettings(**loop), PeerConfig("researcher", "researcher")
    async with (
        tool_server(echo) as box,
        stages(
            agent(*[again] * 13, tools=(box,), agents=(peer,), loop=settings),
            agent("{}", "They are in two states.", name="researcher"),
        ) as (helper, _),
    ):
        assert await ask(helper) == f"Reached maximum reasoning steps ({settings.max_steps})"
        facts = await helper.facts()
        assert (facts.count(event), facts[-1]) == (made, "max_steps")


async def test_what_a_sub_agent_streams_is_told_while_it_streams() -> None:
    coordinator = agent(
        *RESEARCH_SCRIPT, name="coordinator", agents=(PeerConfig("researcher", "researcher"),)
    )
    slow = {"content": "They are in two states.", "chunk_ms": 40}
    researcher = agent("{}", slow, name="researcher")
    async with stages(coordinator, researcher) as (front, _):
        told = frames((await front.chat(stream=True)).text)
        heard = [f.json for f in told if f.event == "progress"]
        assert heard[0]["action"] == "delegate"
        pieces = [chunk["content"] for chunk in heard if chunk["type"] == "delegation_progress"]
        assert len(pieces) > 1
        assert "".join(pieces) == "They are in two states."


async def test_a_cancelled_delegation_is_cancelled_at_its_agent() -> None:
    coordinator = agent(
        *RESEARCH_SCRIPT, name="coordinator", agents=(PeerConfig("researcher", "researcher"),)
    )
    researcher = agent({"content": "{}", "delay_ms": 60_000}, name="researcher")
    async with stages(coordinator, researcher) as (front, back):
        run_id = await front.start()
        await until(back.memory)
        async with asyncio.timeout(1):
            await front.http.post(f"/v1/runs/{run_id}/cancel")
        assert (await front.facts())[-2:] == ["delegation_error", "aborted"]

        async def is_aborted() -> bool:
            return (await back.facts())[-1] == "aborted"

        await until(is_aborted, 1)
