"""`/v1/responses`: runs in OpenAI's Responses API."""
