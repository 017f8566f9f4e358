"""The agent's public profile. Apart from the A2A card and MCP, whose SDKs are heavy to import."""

from collections.abc import Callable
from dataclasses import dataclass

from diptych.core.catalog import Catalog
from diptych.core.messages import JSONObject

CARD_PATH = "/.well-known/agent-card.json"
OLDER_CARD_PATHS = ("/.well-known/agent.json", "/a2a/v0.3/.well-known/agent-card.json")
"""Of the card for clients of A2A 0.3: a path that such clients know, and the usual one below a base
URL of its own, for those that know no other."""

MCP_PATH = "/mcp"
TEAM = "diptych.team"
"""Key of a scope: the profiles of all agents that the caller may ask, at the address of a team;
absent at an agent's own."""

PREFIX = "diptych.prefix"
"""Key of a scope: the path below which `http.team_router` serves the agent; absent at its root."""


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """Name, description, version and URLs.

    `public_url` is the base URL; None means that of each request. Callers at the host of
    `exposed_url` are shown that URL instead. With `asks_for_token` requests need a key or token;
    `issuers` are the URLs of accepted OIDC issuers. `models` returns names, fallbacks last;
    `examples` are questions to try. `inputs` are the model's input kinds besides text. `catalog`
    returns what the agent can call now.
    """

    name: str
    description: str
    version: str
    public_url: str | None = None
    exposed_url: str | None = None
    asks_for_token: bool = False
    issuers: tuple[str, ...] = ()
    models: Callable[[], tuple[str, ...]] = tuple
    examples: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    output_schema: JSONObject | None = None
    catalog: Callable[[], Catalog] = Catalog
    has_push: bool = False
