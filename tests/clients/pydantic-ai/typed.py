"""Typed outputs by pydantic-ai, over both APIs: prints them as JSON. First argument: base URL."""

import asyncio
import itertools
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    """A city."""

    name: str
    population: int


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
    outputs = {"default": City, "native": NativeOutput(City), "prompted": PromptedOutput(City)}
    found = {}
    for api, (form, output) in itertools.product(
        (OpenAIChatModel, OpenAIResponsesModel), outputs.items()
    ):
        way, model = f"{api.__name__}, {form}", api("helper", provider=provider)
        first = await Agent(model, output_type=output).run("Which city?")
        found[way] = first.output.model_dump()
        agent = Agent(model, output_type=output)
        again = await agent.run("Once more?", message_history=first.all_messages())
        found[f"{way}, again"] = again.output.model_dump()
        async with Agent(model, output_type=output).run_stream("Which city?") as stream:
            found[f"{way}, streamed"] = (await stream.get_output()).model_dump()
    print(json.dumps(found))


asyncio.run(main())
