"""Typed outputs by pydantic-ai over the Responses API: prints them as JSON. Argument: base URL."""

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    """A city."""

    name: str
    population: int


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
    model = OpenAIResponsesModel("helper", provider=provider)
    found = {}
    for way, output in {
        "default": City,
        "native": NativeOutput(City),
        "prompted": PromptedOutput(City),
    }.items():
        first = await Agent(model, output_type=output).run("Which city?")
        found[way] = first.output.model_dump()
        agent = Agent(model, output_type=output)
        again = await agent.run("Once more?", message_history=first.all_messages())
        found[f"{way}, again"] = again.output.model_dump()
        async with Agent(model, output_type=output).run_stream("Which city?") as stream:
            found[f"{way}, streamed"] = (await stream.get_output()).model_dump()
    print(json.dumps(found))


asyncio.run(main())
