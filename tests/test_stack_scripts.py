"""The three scripts of loop.md §10, through real servers: exactly the events listed there."""

import json
from typing import Any

import pytest
from support.stack import Stage, agent, call, frames, stages, text_of, tool_server

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import PeerConfig

ECHO_SCRIPT = (call("echo", text="hello"), "{}", "The echo returned: hello")
RESEARCH_SCRIPT = (
    json.dumps({"agent": "researcher", "task": "Find out about qubits"}),
    "{}",
    "Based on the research, qubits are odd.",
)


async def echo(text: str) -> str:
    """Say a text again."""
    return text


async def streamed(stage: Stage) -> str:
    response = await stage.chat(stream=True)
    assert response.status_code == 200, response.text
    return text_of(frames(response.text))


NATIVE_ECHO = {"content": "", "tool_calls": [{"name": "echo", "arguments": {"text": "hello"}}]}


@pytest.mark.parametrize(
    ("again", "loop", "event", "made"),
    [
        pytest.param(ECHO_SCRIPT[0], {}, "tool_result", 2, id="a tool"),
        pytest.param(NATIVE_ECHO, {}, "tool_result", 2, id="natively"),
        pytest.param(ECHO_SCRIPT[0], {"answer_mode": "direct"}, "tool_result", 2, id="directly"),
        pytest.param(RESEARCH_SCRIPT[0], {}, "delegation_response", 5, id="an agent"),
    ],
)
async def test_a_script_that_repeats_its_call_ends_with_the_text_of_max_steps(
    again: Any, loop: Any, event: str, made: int
) -> None:
    settings, peer = RunSettings(**loop), PeerConfig("researcher", "researcher")
    async with (
        tool_server(echo) as box,
        stages(
            agent(*[again] * 13, tools=(box,), agents=(peer,), loop=settings),
            agent("{}", "They are in two states.", name="researcher"),
        ) as (helper, _),
    ):
        assert await streamed(helper) == f"Reached maximum reasoning steps ({settings.max_steps})"
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
