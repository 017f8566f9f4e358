"""What an agent tells others about itself. Apart from the A2A card, which imports the A2A SDK."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """Name, description, version; `public_url` is the base URL (None: that of each request)."""

    name: str
    description: str
    version: str
    public_url: str | None = None
