"""What an agent tells others about itself. Apart from the A2A card, which imports the A2A SDK."""

from dataclasses import dataclass

CARD_PATH = "/.well-known/agent-card.json"
OLDER_CARD_PATHS = ("/.well-known/agent.json", "/a2a/v0.3/.well-known/agent-card.json")
"""Of the card for clients of A2A 0.3: a path that such clients know, and the usual one below a base
URL of its own, for those that know no other."""


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """Name, description, version; `public_url` is the base URL (None: that of each request).

    Callers at the host of `exposed_url` get that URL: other networks reach an agent by others.

    With `asks_for_token` only those are answered who send a key or token; `issuers` are the URLs of
    OIDC issuers whose tokens are taken.
    """

    name: str
    description: str
    version: str
    public_url: str | None = None
    exposed_url: str | None = None
    asks_for_token: bool = False
    issuers: tuple[str, ...] = ()
