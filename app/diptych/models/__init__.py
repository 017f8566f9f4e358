"""The port `Model` over OpenAI's chat completions API."""
