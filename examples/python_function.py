"""An agent in Python whose tools are plain functions: `python python_function.py`.

Types and docstrings are what the model is told of a tool. The replies here are a script, so that
no key is needed. To ask a real model, write `model="openai:gpt-5-mini"` in place of
`mock_responses`, and set OPENAI_API_KEY.
"""

from diptych import Agent, tool


@tool(read_only=True)
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def main() -> None:
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
    print(agent.run_sync("How many words has: a plain function is a tool?"))


if __name__ == "__main__":
    main()
