"""The model, over the API of OpenAI's chat completions."""
