"""An agent in Python whose tools are plain functions: `python python_function.py`.

Types and docstrings are what the model is told of a tool. The replies here are a script, so that
no key is needed; leave `mock_responses` out, and say instead which model to ask:

    model={"name": "gpt-5-mini", "endpoint": "https://api.openai.com/v1",
           "apiKey": {"secretKeyRef": {"name": "openai", "key": "api-key"}}}   # OPENAI_API_KEY
"""

import asyncio

from diptych import Agent


def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def main() -> None:
    """Ask the agent a question, and print its answer."""
    agent = Agent(
        name="counter",
        instructions="Count with the tool, never yourself.",
        tools=[word_count],
        max_steps=5,
        mock_responses=[
            '{"tool": "word_count", "arguments": {"text": "a plain function is a tool"}}',
            "{}",
            "The text has 6 words.",
        ],
    )
    async with agent:
        print(await agent.run("How many words has: a plain function is a tool?"))


if __name__ == "__main__":
    asyncio.run(main())
