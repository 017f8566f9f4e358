"""One of two output types by pydantic-ai: prints what came as JSON. First argument: base URL."""

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Country(BaseModel):
    """A country."""

    name: str


class City(BaseModel):
    """A city."""

    name: str
    country: Country


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
    agent = Agent(OpenAIChatModel("helper", provider=provider), output_type=[Country, City])
    found = [(await agent.run("Which city?")).output]
    async with agent.run_stream("Which city?") as stream:
        found.append(await stream.get_output())
    print(json.dumps([[type(each).__name__, each.model_dump()] for each in found]))


asyncio.run(main())
