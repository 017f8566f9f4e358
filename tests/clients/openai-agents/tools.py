"""A tool of its own and a handoff by OpenAI's agents SDK: prints JSON. First argument: base URL."""

import asyncio
import json
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

called: list[str] = []


@function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    called.append(city)
    return f"sunny in {city}"


async def main() -> None:
    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
    found = {}
    for way, kind in {
        "chat": OpenAIChatCompletionsModel,
        "responses": OpenAIResponsesModel,
    }.items():
        model = kind(model="helper", openai_client=client)
        asker = Agent(name="asker", instructions="Ask.", model=model, tools=[weather])
        whole = await Runner.run(asker, "Which weather?")
        found[way] = [whole.final_output, *called]
        called.clear()
        streamed = Runner.run_streamed(asker, "Which weather?")
        async for _ in streamed.stream_events():
            pass
        found[f"{way}, streamed"] = [streamed.final_output, *called]
        called.clear()
        writer = Agent(name="writer", instructions="Write.", model=model)
        triage = Agent(name="triage", instructions="Hand over.", model=model, handoffs=[writer])
        handed = await Runner.run(triage, "Write a line.")
        found[f"{way}, handed over"] = [handed.final_output, handed.last_agent.name]
    print(json.dumps(found))


asyncio.run(main())
