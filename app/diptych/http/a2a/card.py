"""The agent card: what this agent tells other agents about itself.

Not here: reading the cards of others (`adapters.a2a`).
"""

import re
from functools import lru_cache

from a2a.server.routes import create_agent_card_routes
from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, PROTOCOL_VERSION_1_0
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from diptych.http.a2a.card_facts import CardFacts
from diptych.net import a2a_extension

RPC_PATH = "/a2a"
CACHE_CONTROL = "public, max-age=60"
CARDS_KEPT = 32  # one for each name that the pod is asked under

_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


def card_route(facts: CardFacts) -> Route:
    """Serve the card, with an `ETag`, at the path that the specification names (8.2)."""

    @lru_cache(maxsize=CARDS_KEPT)
    def route_at(base: str) -> Route:
        (route,) = create_agent_card_routes(agent_card(facts, base), cache_control=CACHE_CONTROL)
        return route

    async def show(request: Request) -> Response:
        base = facts.public_url or _own_base(request)
        response: Response = await route_at(base.rstrip("/")).endpoint(request)
        return response

    return Route(AGENT_CARD_WELL_KNOWN_PATH, show, methods=["GET"])


def agent_card(facts: CardFacts, base: str) -> AgentCard:
    """Describe the agent as one skill: what its manifest says that it does."""
    description = facts.description or f"The agent {facts.name}."
    skill = AgentSkill(id=facts.name, name=facts.name, description=description, tags=["agent"])
    return AgentCard(
        name=facts.name,
        description=description,
        version=facts.version,
        supported_interfaces=[
            AgentInterface(
                url=base + RPC_PATH,
                protocol_binding="JSONRPC",
                protocol_version=PROTOCOL_VERSION_1_0,
            )
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=False,
            extended_agent_card=False,
            extensions=[
                AgentExtension(
                    uri=a2a_extension.URI,
                    description="Takes the caller's last messages, its deadline and its call path.",
                    required=False,
                )
            ],
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )


def _own_base(request: Request) -> str:
    """Give the base URL that the caller used; a Host that is none never reaches a card."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        address = request.scope.get("server") or ("localhost", None)
        host = f"{address[0]}:{address[1]}" if address[1] else str(address[0])
    return f"{request.url.scheme}://{host}"
