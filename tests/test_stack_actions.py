"""Every row of the table in loop.md §3, sent by a real model server through the whole stack.

Each test reads what happened (the events) and what the model was told next (its next request).
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from mcp.server import MCPServer
from support.model_server import ModelServer, model_server, says, spoken
from support.stack import Stage, agent, box, call, listening, stage, stages

from diptych.core.prompt import final_prompt
from diptych.manifest.settings import PeerConfig, ToolServerConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADD = call("add", a=1, b=2)
ECHO = call("echo", text="hello")


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def echo(text: str) -> str:
    """Say a text again."""
    return text


async def nothing() -> str:
    """Take no arguments."""
    return "done nothing"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def helper(model: ModelServer) -> AsyncIterator[Stage]:
    peers = (PeerConfig("researcher", "researcher"),)
    front = agent(model=model, tools=(box(add, echo, nothing),), agents=peers)
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
        pytest.param(f"  \n{ADD}\n\n", id="between blanks"),
        pytest.param(json.dumps(json.loads(ADD), indent=2), id="over several lines"),
        pytest.param(f"```json\n{ADD}\n```", id="in a fence"),
        pytest.param(f"```\n{ADD}\n```", id="in a fence without a tag"),
        pytest.param(f"I will add them.\n\n{ADD}\n\nOne moment.", id="with prose around it"),
        pytest.param(f"Like so:\n```json\n{ADD}\n```\nDone.", id="in a fence with prose around"),
        pytest.param(f"\ufeff{ADD}", id="after a byte order mark"),
        pytest.param(f"<think>Use {ECHO}?</think>\n{ADD}", id="after thoughts about another"),
        pytest.param(ADD.replace(" ", "\r\n"), id="with other line ends"),
        pytest.param(f"[{ADD}]", id="as a list of one"),
        pytest.param(json.dumps({"calls": [json.loads(ADD)]}), id="as calls"),
        pytest.param(f"{{}}\n{ADD}", id="after a no-op"),
        pytest.param(f"{ADD}\n{{}}", id="before a no-op"),
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


async def test_arguments_are_nothing_unless_they_are_given(
    helper: Stage, model: ModelServer
) -> None:
    events = await asked(helper, model, '{"tool": "nothing"}', "{}", "Done.")
    assert events[1]["content"] == {"tool": "nothing", "arguments": {}}
    assert model.told(1).endswith("done nothing")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"[{ADD}, {ECHO}]", id="as a list"),
        pytest.param(f'{{"calls": [{ADD}, {ECHO}]}}', id="as calls"),
        pytest.param(f"{ADD}\n\n{ECHO}", id="one after another"),
        pytest.param(f"```json\n{ADD}\n```\n\n```json\n{ECHO}\n```", id="in fences"),
        pytest.param(f"First both:\n{ADD}\n{ECHO}\nThen more.", id="with prose around both"),
        pytest.param(f"{ADD}\n{{}}\n{ECHO}", id="with a no-op between"),
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
        pytest.param("<>", id="an empty tag"),
        pytest.param(" \n{}\n", id="between blanks"),
        pytest.param("```json\n{}\n```", id="in a fence"),
        pytest.param("I am done thinking about it.", id="plain prose"),
        pytest.param("", id="nothing"),
        pytest.param("<think>Hm.</think>", id="only thoughts"),
        pytest.param('The data is {"name": "Ada", "age": 36} as asked.', id="data in prose"),
        pytest.param('{"name": "Ada"}', id="data alone"),
        pytest.param("[x] done\n[ ] not done", id="boxes"),
        pytest.param("See [the link](http://example.com/a).", id="a link"),
        pytest.param("Dear {name}, {greeting}!", id="a template"),
        pytest.param("```python\nd = {'a': [1, 2]}\n```", id="code"),
        pytest.param("x <> y, if x < y and y > 0", id="an empty tag in prose"),
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


WAITS = {"tool": "echo", "arguments": {"text": "x"}}
BROKEN = [
    pytest.param(f"{ADD}\nor perhaps\n{ECHO}", "ambiguous", "", id="prose between calls"),
    pytest.param(f"I would use {ADD} here.", "ambiguous", "", id="a call inside a line"),
    pytest.param('{"tool": "add", "arguments": {"a": 1,, "b": 2}}', "json_syntax", "", id="bad"),
    pytest.param("{'tool': 'add', 'arguments': {}}", "json_syntax", "", id="other quotes"),
    pytest.param('{"tool": "add", "arguments": {"a": NaN, "b": 1}}', "json_syntax", "", id="NaN"),
    pytest.param('{"tool": "add", "arguments": {"a": 1', "truncated", "", id="truncated"),
    pytest.param('{"arguments": {"a": 1}}', "missing_field", "", id="no tool"),
    pytest.param('{"agent": "researcher"}', "missing_field", "task", id="no task"),
    pytest.param('{"calls": 3}', "missing_field", "list", id="calls that are a number"),
    pytest.param('{"tool": 7}', "missing_field", "", id="a tool that is a number"),
    pytest.param(
        '{"tool": "add", "arguments": [1]}', "invalid_arguments", "object", id="arguments as a list"
    ),
    pytest.param(call("sub", a=1), "unknown_tool", "add, echo, nothing", id="an unknown tool"),
    pytest.param(
        '{"agent": "writer", "task": "t"}', "unknown_agent", "researcher", id="an unknown agent"
    ),
    pytest.param(call("researcher"), "unknown_tool", "it is an agent", id="an agent as a tool"),
    pytest.param(call("add", a="one", b=2), "invalid_arguments", "a", id="an argument's type"),
    pytest.param(call("add", a=1), "invalid_arguments", "b", id="an argument missing"),
    pytest.param(
        several({**WAITS, "id": "a", "after": ["b"]}, {**WAITS, "id": "b", "after": ["a"]}),
        "invalid_graph",
        '"a", "b"',
        id="a circle",
    ),
    pytest.param(
        several({**WAITS, "id": "a"}, {**WAITS, "id": "a"}),
        "invalid_graph",
        '"a"',
        id="an id twice",
    ),
    pytest.param(
        several({**WAITS, "id": "a", "after": ["z"]}), "invalid_graph", '"z"', id="an unknown id"
    ),
    pytest.param(
        several({"tool": "echo", "arguments": {"text": "${z.x}"}, "id": "a"}),
        "invalid_graph",
        '"z"',
        id="a reference to an unknown id",
    ),
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


async def test_of_a_long_reply_the_model_is_told_the_first_500_characters(
    helper: Stage, model: ModelServer
) -> None:
    reply = call("sub", text="y" * 2000)
    await asked(helper, model, reply, "{}", "Sorry.")
    said = [m["content"] for m in model.requests[1]["messages"] if m["role"] == "assistant"]
    assert said == [reply[:500]]


async def test_a_reply_cut_by_the_models_own_limit_never_runs_its_calls(
    helper: Stage, model: ModelServer
) -> None:
    events = await asked(helper, model, says(ADD, "length"), "{}", "Sorry.")
    assert types(events) == ["user_message", "action_error", "agent_response"]
    assert events[1]["metadata"]["error_type"] == "truncated"
    assert "error_type: truncated" in model.told(1)


async def test_after_an_error_the_mended_call_is_run(helper: Stage, model: ModelServer) -> None:
    events = await asked(helper, model, call("sub"), ADD, "{}", "Three.")
    assert types(events) == [
        "user_message",
        "action_error",
        "tool_call",
        "tool_result",
        "agent_response",
    ]
    assert model.told(2) == "[Step 2/5] Result of tool add:\n3"


async def test_when_the_retries_run_out_the_answer_is_asked_for(
    helper: Stage, model: ModelServer
) -> None:
    events = await asked(helper, model, *[call("sub")] * 4, "I could not.")
    assert types(events) == ["user_message", *["action_error"] * 4, "agent_response"]
    assert model.told(4).endswith(final_prompt())
    assert events[-1]["content"] == "I could not."


async def test_a_tool_of_a_server_that_is_away_is_a_result_and_no_error_of_the_reply(
    model: ModelServer,
) -> None:
    away = ToolServerConfig("calc", url="http://127.0.0.1:9/mcp")
    async with stage(model=model, tools=(box(add), away)) as helper:
        events = await asked(helper, model, call("calc__sub"), "{}", "Sorry.")
        assert types(events) == ["user_message", "tool_error", "agent_response"]
        assert events[1]["metadata"]["error"] == "unavailable"
        assert model.told(1) == "[Step 1/5] Error from tool calc__sub:\nunavailable: calc"
        assert "calc" in model.requests[0]["messages"][0]["content"]


async def test_of_a_server_that_was_away_from_the_start_any_name_may_be_a_tool(
    model: ModelServer,
) -> None:
    away = ToolServerConfig("calc", url="http://127.0.0.1:9/mcp")
    async with stage(model=model, tools=(box(add), away)) as helper:
        events = await asked(helper, model, call("sub"), "{}", "Sorry.")
    assert types(events) == ["user_message", "tool_error", "agent_response"]
    assert "unavailable: calc; tools available: add" in model.told(1)


async def test_a_server_that_is_away_is_not_blamed_for_a_name_that_it_cannot_have(
    model: ModelServer,
) -> None:
    away = ToolServerConfig("calc", url="http://127.0.0.1:9/mcp", allow=("mul",))
    async with stage(model=model, tools=(box(add), away)) as helper:
        events = await asked(helper, model, call("sub"), "{}", "Sorry.")
        assert types(events) == ["user_message", "action_error", "agent_response"]
        assert 'there is no tool "sub"; tools available: add' in model.told(1)
        assert "tool_error" in types(await asked(helper, model, call("mul"), "{}", "Sorry."))


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


async def test_references_lead_into_results_that_are_json_as_text(model: ModelServer) -> None:
    """Of a tool that gives text without a structured value, and of an agent (loop.md §3)."""
    server = MCPServer("prices", log_level="CRITICAL")

    def price() -> str:
        return '{"each": 2, "at": ["north", "south"]}'

    server.add_tool(price, structured_output=False)
    peers = (PeerConfig("researcher", "researcher"),)
    reply = several(
        {"id": "price", "tool": "price", "arguments": {}},
        {"id": "count", "agent": "researcher", "task": "count"},
        {"id": "sum", "tool": "add", "arguments": {"a": "${price.each}", "b": "${count.n}"}},
        {"id": "say", "tool": "echo", "arguments": {"text": "at ${price.at.1}: ${sum}"}},
    )
    async with listening(server.streamable_http_app()) as url:
        tools = (box(add, echo), ToolServerConfig("prices", url=f"{url}/mcp"))
        front = agent(model=model, tools=tools, agents=peers)
        async with stages(front, agent("{}", '{"n": 40}', name="researcher")) as (served, _):
            events = await asked(served, model, reply, "{}", "Done.")
    made = [e["content"].get("arguments") for e in events if e["event_type"] == "tool_call"]
    assert made == [{}, {"a": 2, "b": 40}, {"text": "at south: 42"}]


async def test_the_system_prompt_lists_what_can_be_called_and_stays_the_same(
    helper: Stage, model: ModelServer
) -> None:
    await asked(helper, model, ADD, "{}", "Three.")
    prompts = {request["messages"][0]["content"] for request in model.requests}
    assert len(prompts) == 1
    (prompt,) = prompts
    for part in ("## Available Tools", "- add: Add two numbers.", "- researcher: "):
        assert part in prompt
