"""A tool of its own by pydantic-ai, in all its ways: prints JSON. First argument: base URL."""

import asyncio
import json
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

called: list[str] = []


def weather(city: str) -> str:
    """Tell the weather of a city."""
    called.append(city)
    return f"sunny in {city}"


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
    found = {}
    for way, kind in {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}.items():
        agent = Agent(kind("helper", provider=provider), tools=[weather], instructions="Ask.")
        whole = await agent.run("Which weather?")
        found[way] = [whole.output, *called]
        called.clear()
        async with agent.run_stream("Which weather?") as stream:
            found[f"{way}, streamed"] = [await stream.get_output(), *called]
        called.clear()
    print(json.dumps(found))


asyncio.run(main())
