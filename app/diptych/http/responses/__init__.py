"""`/v1/responses`: runs in the newer form of OpenAI's API."""
