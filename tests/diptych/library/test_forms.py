"""What `Agent` takes as its model, tools and agents, and what it refuses when it is made."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from support.model_server import model_server
from support.stack import stage, tool_server

from diptych import (
    Agent,
    ConfigError,
    Delta,
    ModelAPI,
    ModelError,
    ModelRequest,
    Reply,
    RunError,
    ToolResultEvent,
    Usage,
    tool,
)
from diptych.testing import RecordedTool, ScriptedModel, call, delegate, raw

# ---- models


class Whole:
    """A model of the user's own."""

    async def complete(self, request: ModelRequest) -> Reply:
        assert request.messages[-1].role == "user"
        return Reply("{}", Usage(3, 1))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        yield Delta("Hi")
        yield Delta(" there.", usage=Usage(2, 2), finish_reason="length")


class Prompted:
    """The model of founding text 000."""

    def __init__(self) -> None:
        self.replies = ["{}", "Hi there."]

    def generate(self, prompt: str, **parameters: Any) -> str:
        assert prompt.startswith("System: Be brief.")
        assert "\n\nUser: " in prompt
        assert "Hello" in prompt
        assert prompt.endswith("\n\nAssistant:")
        return self.replies.pop(0)


class PromptedLater(Prompted):
    async def generate(self, prompt: str, **parameters: Any) -> str:
        return super().generate(prompt, **parameters)


async def test_an_object_with_complete_and_stream_is_a_model() -> None:
    result = await Agent("helper", model=Whole()).run("Hello")
    assert (result.text, result.usage, result.finish_reason) == ("Hi there.", Usage(5, 3), "length")


@pytest.mark.parametrize("model", [Prompted(), PromptedLater()])
async def test_an_object_with_generate_is_a_model(model: Any) -> None:
    agent = Agent("helper", model=model, instructions="Be brief.")
    assert str(await agent.run("Hello")) == "Hi there."


async def test_an_endpoint_is_a_model_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with model_server("{}", "Hi.") as server:
        agent = Agent("helper", model_api=ModelAPI(server.url, "m", api_key="sesame"), max_steps=5)
        assert str(await agent.run("Hello")) == "Hi."
        assert server.headers[0]["Authorization"] == "Bearer sesame"
        server.play("{}", "Hi again.")
        monkeypatch.setenv("OPENAI_API_KEY", "open sesame")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert str(await Agent("helper", model="openai:gpt-5-mini").run("Hello")) == "Hi again."
        assert server.headers[-1]["Authorization"] == "Bearer open sesame"
        assert server.requests[-1]["model"] == "gpt-5-mini"
    assert "sesame" not in repr(ModelAPI("http://127.0.0.1", "m", api_key="sesame"))


class Broken:
    """A model that does what none should."""

    def __init__(self, does: Any) -> None:
        self.does = does

    async def complete(self, request: ModelRequest) -> Any:
        return self.does() if callable(self.does) else self.does

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        yield Delta("Half")


def fail() -> None:
    raise ZeroDivisionError("by me")


def leave() -> None:
    sys.exit("by me")


def overload() -> None:
    raise ModelError("model_overloaded", "later")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (fail, "model_failed: the model raised ZeroDivisionError: by me"),
        (leave, "model_failed: the model raised SystemExit: by me"),
        (overload, "model_overloaded: later"),
        ("text", "model_garbage: complete of the model gave str, not Reply"),
        (Reply("{}"), "model_cut: the last piece of the stream has no finish_reason"),
    ],
)
async def test_what_a_model_does_wrong_is_the_error_of_its_run(does: Any, said: str) -> None:
    with pytest.raises(RunError, match=said) as caught:
        await Agent("helper", model=Broken(does)).run("Hello")
    assert caught.value.run_id.startswith("run-")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (object(), r"Agent\('a'\): model: <object object at .*> is no model; give \"provider:name"),
        (Whole, r"Agent\('a'\): model: Whole is a class; make an object: Whole\(…\)"),
        ("gpt-5-mini", r"Agent\('a'\): .*gpt-5-mini.*openai:gpt-5-mini"),
        ("opnai:gpt-5-mini", r"Agent\('a'\): .*openai"),
        ({"name": "m"}, r"Agent\('a'\): spec.model"),
        (5, r"Agent\('a'\): model: 5 is no model"),
    ],
)
def test_anything_else_is_no_model(model: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Agent("a", model=model)


def test_a_model_is_given_once() -> None:
    with pytest.raises(ConfigError, match="give one"):
        Agent("a", model=Whole(), model_api=Whole())


def test_a_missing_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        Agent("a", model="openai:gpt-5-mini")


# ---- tools


@tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


SERVER = """
from mcp.server import MCPServer
server = MCPServer("whispers")
@server.tool()
def whisper(text: str) -> str:
    "Whisper."
    return text.lower()
server.run()
"""


async def test_functions_urls_commands_agents_and_their_urls_work_side_by_side(
    tmp_path: Path,
) -> None:
    program = tmp_path / "mcp-whispers.py"
    program.write_text(SERVER)
    near = Agent("near", description="Is near.", model=ScriptedModel("I am near."))
    async with tool_server(shout) as box, stage("{}", "I am far.", name="far") as far:
        model = ScriptedModel(
            call("add", a=2, b=2)
            & call("shout", text="Hi")
            & call("mcp-whispers__whisper", text="Hi")
            & delegate("near", "Where?")
            & delegate("agent", "Where?"),
            "All done.",
        )
        agent = Agent(
            "helper",
            model=model,
            tools=[add, box.url or "", [sys.executable, str(program)]],
            agents=[near, far.url],
        )
        async with agent:
            result = await agent.run("Use them all.")
    assert result.text == "All done."
    texts = [e.text for e in result.events if e.type in {"tool_result", "delegation_result"}]
    assert sorted(texts) == ["4", "HI", "I am far.", "I am near.", "hi"]
    assert result.usage.completion_tokens > 3, "those of agents of this process count, too"


async def test_marks_of_a_function_are_those_of_its_tool() -> None:
    seen: list[str] = []

    @tool(sequential=True, timeout=5)
    async def one_at_a_time(name: str) -> str:
        """Say when it runs."""
        seen.append(f"{name} begins")
        await asyncio.sleep(0.05)
        seen.append(f"{name} ends")
        return name

    @tool(terminal=True)
    def stop() -> str:
        """End the steps."""
        return "stopped"

    both = call("one_at_a_time", name="a") & call("one_at_a_time", name="b")
    model = ScriptedModel(both, call("stop"), raw("Done."))
    assert str(await Agent("helper", model=model, tools=[one_at_a_time, stop]).run("Go")) == "Done."
    assert seen in (
        ["a begins", "a ends", "b begins", "b ends"],
        ["b begins", "b ends", "a begins", "a ends"],
    )
    assert add(2, 2) == 4, "a marked function is still one"


async def test_a_tool_that_asks_yields_to_the_policy() -> None:
    paid = RecordedTool(tool(ask="Payments need a person.")(pay), returns="paid")
    model = ScriptedModel(call("pay", amount=5))
    result = await Agent("cashier", model=model, tools=[paid]).run("Pay.")
    [asked] = result.approvals
    assert (asked.tool, asked.arguments, asked.reason) == (
        "pay",
        {"amount": 5},
        "Payments need a person.",
    )
    policy = [{"match": {"tool": "*"}, "when": "args.amount < 10", "do": "allow"}]
    model = ScriptedModel(call("pay", amount=5), "Paid.")
    free = Agent("cashier", model=model, tools=[paid], policy=policy)
    assert str(await free.run("Pay.")) == "Paid."
    assert paid.calls == [{"amount": 5}]


def pay(amount: int) -> str:
    """Pay an amount."""
    raise AssertionError(amount)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tools": [5]}, r"Agent\('a'\): tools\[0\]: must be a function, a URL, a command"),
        ({"tools": "https://tools.example.com"}, r"tools: must be a list; write \['https"),
        ({"tools": ["add"]}, r"Agent\('a'\): tools\[0\]: 'add' is not a URL; give the function"),
        ({"tools": [[]]}, r"Agent\('a'\): spec.tools\[0\].command"),
        ({"tools": [shout, shout]}, "two functions are called shout"),
        ({"agents": ["nonsense"]}, r"Agent\('a'\): spec.agents\[0\].url"),
        ({"agents": Agent("b", model=Whole())}, r"Agent\('a'\): agents: must be a list; write"),
        ({"agents": "https://a.example.com"}, r"Agent\('a'\): agents: must be a list; write"),
        ({"hook_seconds": "2"}, "hook_seconds must be a number"),
        ({"agents": [5]}, r"Agent\('a'\): agents\[0\]: must be an Agent, a URL or a mapping"),
    ],
)
def test_what_is_no_tool_or_agent_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Agent("a", mock_responses=["{}"], **arguments)


def test_two_agents_of_one_name_are_refused() -> None:
    twins = [Agent("twin", mock_responses=["{}"]) for _ in range(2)]
    for agents in (twins, [twins[0], {"as": "twin", "url": "https://agents.example.com"}]):
        with pytest.raises(ConfigError, match="two are called twin; rename one"):
            Agent("a", mock_responses=["{}"], agents=agents)


async def test_a_recorded_tool_may_fail_or_do_what_its_function_does() -> None:
    fails, adds = RecordedTool(shout, raises=OSError("no voice")), RecordedTool(add)
    model = ScriptedModel(call("shout", text="a") & call("add", a=1, b=2), raw("{"), "Done.")
    result = await Agent("helper", model=model, tools=[fails, adds]).run("Go")
    results = [e for e in result.events if isinstance(e, ToolResultEvent)]
    assert {(e.tool, e.value, e.error) for e in results} == {
        ("shout", None, "failed"),
        ("add", 3, None),
    }
    assert "no voice" in str(results)
    assert (model.left, len(model.requests)) == (0, 4)
    with pytest.raises(RunError, match="mock_exhausted: the ScriptedModel has no reply left"):
        await Agent("helper", model=model).run("More")
