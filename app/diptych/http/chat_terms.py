"""What requests in OpenAI's forms, chats and responses, may bring to one agent."""

from dataclasses import dataclass, field

from diptych.core.errors import InvalidRequest
from diptych.manifest.settings import ChatConfig


@dataclass(frozen=True, slots=True)
class ChatTerms:
    """What requests to an agent may bring; `inputs` is what its model takes besides text."""

    name: str
    config: ChatConfig = field(default_factory=ChatConfig)
    inputs: tuple[str, ...] = ()


def check_model(model: str | None, name: str) -> None:
    """Refuse a request with another model than the agent. Raises `InvalidRequest`."""
    if model is not None and model != name:
        raise InvalidRequest(
            f"this agent is called {name!r}; use that as the model, or leave it out",
            param="model",
            code="model_not_found",
        )
