"""Typed outputs by LiteLLM, in all its ways: prints them as JSON. First argument: base URL."""

import json
import sys

import litellm
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    population: int


MESSAGES = [{"role": "user", "content": "Which city?"}]
TOOL = {
    "type": "function",
    "function": {"name": "City", "parameters": City.model_json_schema()},
}


def ask(**fields: object) -> litellm.ModelResponse:
    return litellm.completion(
        model="openai/helper",
        api_base=f"{sys.argv[1]}/v1",
        api_key="none",
        messages=MESSAGES,
        num_retries=0,
        **fields,
    )


def text(response: litellm.ModelResponse) -> str:
    return response.choices[0].message.content


forced = {"type": "function", "function": {"name": "City"}}
called = ask(tools=[TOOL], tool_choice=forced).choices[0].message.tool_calls[0].function
chunks = ask(response_format=City, stream=True)
found = {
    "model": json.loads(text(ask(response_format=City))),
    "json_object": json.loads(text(ask(response_format={"type": "json_object"}))),
    "tool": json.loads(called.arguments),
    "streamed": json.loads("".join(c.choices[0].delta.content or "" for c in chunks)),
}
print(json.dumps(found))
