"""The table in loop.md §3, a reply of each kind sent by a real model server through the stack.

Each test reads what happened (the events) and what the model was told next (its next request).
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.model_server import ModelServer, model_server, says, spoken
from support.stack import Stage, agent, box, call, stages

from diptych.core.prompt import final_prompt
from diptych.manifest.settings import PeerConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADD = call("add", a=1, b=2)
ECHO = call("echo", text="hello")


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def echo(text: str) -> str:
    """Say a text again."""
    return text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def helper(model: ModelServer) -> AsyncIterator[Stage]:
    peers = (PeerConfig("researcher", "researcher"),)
    front = agent(model=model, tools=(box(add, echo),), agents=peers)
    async with stages(front, agent("{}", "Found.", name="researcher")) as (served, _):
        yield served


async def asked(helper: Stage, model: ModelServer, *steps: Any) -> list[dict[str, Any]]:
    """Ask with a script for the model, and give the events of the run."""
    model.play(*steps)
    response = await helper.chat()
    assert response.status_code == 200, response.text
    return await helper.memory(session_id=response.headers["X-Session-ID"])


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["event_type"] for event in events]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(ADD, id="alone"),
        pytest.param(f"```json\n{ADD}\n```", id="in a fence"),
        pytest.param(f"Like so:\n```json\n{ADD}\n```\nDone.", id="in a fence with prose around"),
        pytest.param(f"<think>Use {ECHO}?</think>\n{ADD}", id="after thoughts about another"),
        pytest.param(json.dumps({"calls": [json.loads(ADD)]}), id="as calls"),
        pytest.param(call("box__add", a=1, b=2), id="by its long name"),
    ],
)
async def test_one_call_is_run_and_its_result_told(
    helper: Stage, model: ModelServer, reply: str
) -> None:
    events = await asked(helper, model, reply, "{}", "Three.")
    assert types(events) == ["user_message", "tool_call", "tool_result", "agent_response"]
    assert events[1]["content"]["arguments"] == {"a": 1, "b": 2}
    assert model.told(1).startswith("[Step 1/5] Result of tool ")
    assert model.told(1).endswith("add:\n3")
    assert "think" not in str(model.requests[1]["messages"][-2])


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"[{ADD}, {ECHO}]", id="as a list"),
        pytest.param(f'{{"calls": [{ADD}, {ECHO}]}}', id="as calls"),
        pytest.param(f"First both:\n{ADD}\n{ECHO}\nThen more.", id="with prose around both"),
    ],
)
async def test_several_calls_are_run_and_told_in_their_order(
    helper: Stage, model: ModelServer, reply: str
) -> None:
    events = await asked(helper, model, reply, "{}", "Both.")
    assert sorted(types(events)) == sorted(
        ["user_message", *["tool_call", "tool_result"] * 2, "agent_response"]
    )
    assert [e["content"]["tool"] for e in events if e["event_type"] == "tool_call"] == [
        "add",
        "echo",
    ]
    told = model.told(1)
    assert told == ("[Step 1/5] Result of tool add:\n3\n\n[Step 1/5] Result of tool echo:\nhello")


async def test_a_delegation_is_sent_and_its_answer_told(helper: Stage, model: ModelServer) -> None:
    reply = json.dumps({"agent": "researcher", "task": "look"})
    events = await asked(helper, model, reply, "{}", "Yes.")
    assert types(events)[1:3] == ["delegation_request", "delegation_response"]
    assert model.told(1) == "[Step 1/5] Result of agent researcher:\nFound."


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("{}", id="an empty object"),
        pytest.param("I am done thinking about it.", id="plain prose"),
        pytest.param("", id="nothing"),
        pytest.param('The data is {"name": "Ada", "age": 36} as asked.', id="data in prose"),
        pytest.param("```python\nd = {'a': [1, 2]}\n```", id="code"),
    ],
)
async def test_what_is_no_action_leads_to_the_answer_and_is_not_kept(
    helper: Stage, model: ModelServer, reply: str
) -> None:
    events = await asked(helper, model, reply, "The answer.")
    assert types(events) == ["user_message", "agent_response"]
    assert model.told(1).endswith(f"\n\n{final_prompt()}")
    assert model.requests[1]["stream"] is True
    assert [m["role"] for m in model.requests[1]["messages"]] == ["system", "user"]


def several(*calls: dict[str, Any]) -> str:
    return json.dumps(list(calls))


HELLO = json.loads(ECHO)
CIRCLE = several({**HELLO, "id": "a", "after": ["b"]}, {**HELLO, "id": "b", "after": ["a"]})
BROKEN = [
    pytest.param(f"{ADD}\nor perhaps\n{ECHO}", "ambiguous", "", id="prose between calls"),
    pytest.param('{"tool": "add", "arguments": {"a": 1,, "b": 2}}', "json_syntax", "", id="bad"),
    pytest.param('{"tool": "add", "arguments": {"a": 1', "truncated", "", id="truncated"),
    pytest.param('{"agent": "researcher"}', "missing_field", "task", id="no task"),
    pytest.param(call("sub", a=1), "unknown_tool", "add, echo", id="an unknown tool"),
    pytest.param(
        '{"agent": "writer", "task": "t"}', "unknown_agent", "researcher", id="an unknown agent"
    ),
    pytest.param(call("add", a="one", b=2), "invalid_arguments", "a", id="an argument's type"),
    pytest.param(CIRCLE, "invalid_graph", '"a", "b"', id="a circle"),
    pytest.param(several(json.loads(ADD), {"tool": "sub"}), "unknown_tool", "", id="one of two"),
]


@pytest.mark.parametrize(("reply", "error_type", "detail"), BROKEN)
async def test_a_broken_action_is_told_and_nothing_of_it_runs(
    helper: Stage, model: ModelServer, reply: str, error_type: str, detail: str
) -> None:
    events = await asked(helper, model, reply, "{}", "Sorry.")
    assert types(events) == ["user_message", "action_error", "agent_response"]
    assert events[1]["metadata"]["error_type"] == error_type
    *_, said, told = model.requests[1]["messages"]
    assert said == {"role": "assistant", "content": reply}
    assert told["role"] == "user"
    told = spoken(told["content"])
    first, kind, *rest = told.splitlines()
    assert first.startswith("[Step 1/5]")
    assert kind == f"error_type: {error_type}"
    assert rest[0].startswith("detail: ")
    assert detail in rest[0]
    assert reply not in told  # it stands in the message before, and there alone


async def test_a_reply_cut_by_the_models_own_limit_never_runs_its_calls(
    helper: Stage, model: ModelServer
) -> None:
    events = await asked(helper, model, says(ADD, "length"), "{}", "Sorry.")
    assert types(events) == ["user_message", "action_error", "agent_response"]
    assert events[1]["metadata"]["error_type"] == "truncated"
    assert "error_type: truncated" in model.told(1)


async def test_references_are_filled_and_text_that_looks_like_one_is_let_be(
    helper: Stage, model: ModelServer
) -> None:
    reply = several(
        {"id": "sum", "tool": "add", "arguments": {"a": 1, "b": 2}},
        {"id": "more", "tool": "add", "arguments": {"a": "${sum}", "b": 10}},
        {"id": "say", "tool": "echo", "arguments": {"text": "${sum} and $${more} and ${more}"}},
        {"id": "miss", "tool": "echo", "arguments": {"text": "${sum.nothing}"}},
    )
    events = await asked(helper, model, reply, "{}", "Done.")
    calls = [e["content"]["arguments"] for e in events if e["event_type"] == "tool_call"]
    assert calls == [
        {"a": 1, "b": 2},
        {"a": 3, "b": 10},
        {"text": "3 and ${more} and 13"},
    ]
    told = model.told(1).split("\n\n")
    assert [block.split("\n")[0] for block in told] == [
        "[Step 1/5] Result of tool add (id sum):",
        "[Step 1/5] Result of tool add (id more):",
        "[Step 1/5] Result of tool echo (id say):",
        "[Step 1/5] Error from tool echo (id miss):",
    ]
    await asked(helper, model, call("echo", text="${sum}"), "{}", "Done.")
    assert model.told(1).endswith("\n${sum}")
