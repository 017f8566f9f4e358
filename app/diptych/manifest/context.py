"""The part of a manifest that says how long a conversation the model takes."""

from typing import Annotated

from pydantic import Field

from diptych.core.context_window import LEAST_LIMIT
from diptych.manifest.strict_model import StrictModel


class ContextSpec(StrictModel):
    """How much of a long conversation the model is sent."""

    max_tokens: Annotated[int, Field(ge=LEAST_LIMIT, le=100_000_000)] | None = None
    """The model's context window in tokens, the reply included. Long results are sent as excerpts
    and old messages as a summary, so that a request stays below 75 % of it. If absent, the agent
    learns the window when the endpoint refuses a request as too long."""
