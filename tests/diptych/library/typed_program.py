"""A user's program, as strict type checkers see it (test_types.py); it is never run."""

from collections.abc import AsyncGenerator
from typing import Any, assert_type

from pydantic import BaseModel

from diptych import (
    Agent,
    Approval,
    CallInfo,
    Decision,
    Delta,
    Deny,
    Event,
    Message,
    ModelAPI,
    ModelRequest,
    Record,
    Reply,
    ResultInfo,
    RunResult,
    SubAgentEvent,
    TextEvent,
    ToolCallEvent,
    Usage,
    tool,
)
from diptych.testing import RecordedTool, ScriptedModel, call, delegate, raw


class City(BaseModel):
    """The form of an answer."""

    name: str


class Own:
    """A model of the user's own."""

    async def complete(self, request: ModelRequest) -> Reply:
        return Reply(request.messages[-1].content, Usage(1, 1))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        yield Delta("Hi.", finish_reason="stop")


class Prompted:
    """A model that continues a prompt."""

    def generate(self, prompt: str, **parameters: Any) -> str:
        return prompt


@tool(read_only=True, idempotent=True, sequential=False, terminal=False)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return str(amount)


def cap(call_info: CallInfo) -> dict[str, int] | Deny | None:
    """Cap an amount."""
    return Deny("too much") if call_info.tool == "pay" else None


async def hide(_: CallInfo, result: ResultInfo) -> str:
    """Hide a text."""
    return result.text


def shorten(messages: list[Message]) -> list[Message]:
    """Send the newest messages alone."""
    return messages[-3:]


def decide(approval: Approval) -> Decision:
    """Decide on a call."""
    return "approve" if approval.tool == "pay" else {"decision": "reject", "reason": "no"}


assert_type(add(1, 2), int)
researcher = Agent("researcher", description="Looks things up.", model="openai:gpt-5-mini")
agent = Agent(
    "helper",
    model=ModelAPI("https://models.example.com/v1", "m", api_key="k"),
    instructions="Help.",
    tools=[add, pay, "https://tools.example.com/mcp", ["uvx", "mcp-server-time"]],
    agents=[researcher, "https://agents.example.com"],
    before_call=cap,
    after_call=[hide],
    transform_context=shorten,
    max_steps=5,
)
own, prompted = Agent("own", model=Own()), Agent("prompted", model_api=Prompted())
mapped = Agent("mapped", model={"provider": "ollama", "name": "llama3.2"})


def text_of(event: Event) -> str:
    """Read an event by its class or its type."""
    if event.type == "text":
        assert_type(event, TextEvent)
        return event.text
    if isinstance(event, ToolCallEvent):
        return event.tool
    if isinstance(event, SubAgentEvent):
        return text_of(event.event)
    return event.type


async def main() -> None:
    """Use every method once."""
    result = await agent.run("Hi", session_id="s", max_steps=8, max_retries=2, on_approval=decide)
    assert_type(result, RunResult[str])
    city = await agent.run("Where?", output=City)
    assert_type(city.output, City)
    assert_type((await agent.decide(city, {"call_1_1": "approve"})).output, City)
    assert_type((await agent.decide(city.run_id, {})).output, str)
    assert_type((await agent.resume(city.run_id)).text, str)
    assert_type((await agent.run("Where?", output={"type": "object"})).run_id, str)
    async for text in agent.stream_text("Hi"):
        assert_type(text, str)
    async for event in agent.stream("Hi"):
        text_of(event)
    assert_type(await agent.memory.get_session_events("s"), list[Record])
    run_id = await agent.begin("Hi", paused=True)
    assert_type(await agent.step(run_id), list[Record])
    await agent.steer(run_id, "more")
    await agent.clear_steering(run_id)
    await agent.clear_follow_ups(run_id)
    await agent.edit(run_id, "call_1_1", {"amount": 1})


assert_type(agent.run_sync("Where?", output=City).output, City)
assert_type(agent.run_sync("Hi").output, str)
assert_type(agent.run_sync("Hi").usage.prompt_tokens, int)

recorded = RecordedTool(add, returns=4)
assert_type(recorded(1, 2), int)
scripted = Agent(
    "scripted",
    model=ScriptedModel(call("add", a=1, b=2) & delegate("own", "Do."), raw("{"), "Done."),
    tools=[recorded],
    agents=[own],
)
