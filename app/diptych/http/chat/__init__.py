"""The chat endpoint, compatible with OpenAI's."""
