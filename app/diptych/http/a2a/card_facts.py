"""What the agent card says of an agent; apart from the card, so that it costs no A2A library."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says. `public_url` is the agent's base URL; without one, each request's own."""

    name: str
    description: str
    version: str
    public_url: str | None = None
