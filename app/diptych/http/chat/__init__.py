"""The OpenAI-compatible chat endpoint."""
