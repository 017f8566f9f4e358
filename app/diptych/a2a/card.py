"""The agent card: describes this agent to other agents."""

import re
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache

from a2a.server.routes import create_agent_card_routes
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    OpenIdConnectSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from diptych.a2a import extension
from diptych.a2a.parts import DATA, TEXT, input_modes
from diptych.http.agent_profile import CARD_PATH, OLDER_CARD_PATHS, PREFIX, AgentProfile
from diptych.http.errors import REST_PATH

RPC_PATH = "/a2a"
CACHE_CONTROL = "public, max-age=60"
DISCOVERY = "/.well-known/openid-configuration"  # OpenID Connect Discovery 1.0, section 4
CACHED_CARDS = 32  # one for each host name by which the pod is called

_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


def card_routes(profile: AgentProfile) -> list[Route]:
    """Serve the card of 1.0 at its well-known path, and that of 0.3 at others (decision 241)."""
    older = PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3
    return [
        _card_route(profile, CARD_PATH, (PROTOCOL_VERSION_1_0,)),
        *(_card_route(profile, path, older) for path in OLDER_CARD_PATHS),
    ]


def _card_route(profile: AgentProfile, path: str, versions: Sequence[str]) -> Route:
    """Serve a card with an `ETag`. The SDK adds 0.3 fields to a card that has 0.3 interfaces."""
    modified = formatdate(usegmt=True)

    @lru_cache(maxsize=CACHED_CARDS)
    def route_at(base: str) -> Route:
        card = agent_card(profile, base, versions)
        (route,) = create_agent_card_routes(card, cache_control=CACHE_CONTROL)
        return route

    async def get_card(request: Request) -> Response:
        response: Response = await route_at(base_url(profile, request)).endpoint(request)
        response.headers["Last-Modified"] = modified
        return response

    return Route(path, get_card, methods=["GET"])


def base_url(profile: AgentProfile, request: Request) -> str:
    """Return the agent's base URL, as this caller knows it."""
    base = _exposed_base(profile, request) or profile.public_url or _own_base(request)
    return base.rstrip("/")


def extended_card(profile: AgentProfile, base: str) -> AgentCard:
    """Build the card for callers who may ask: with questions to try, tools and agents as skills."""
    card = agent_card(profile, base, (PROTOCOL_VERSION_1_0,))
    card.skills[0].examples.extend(profile.examples)
    offers = profile.catalog()
    card.skills.extend(
        AgentSkill(id=name, name=name, description=tool.description, tags=["tool", tool.server])
        for name, tool in offers.listed()
    )
    card.skills.extend(
        AgentSkill(id=f"agent:{a.name}", name=a.name, description=a.description, tags=["agent"])
        for a in offers.agents
    )
    return card


def agent_card(profile: AgentProfile, base: str, versions: Sequence[str]) -> AgentCard:
    """Build a card with one skill, described by the manifest."""
    description = profile.description or f"The agent {profile.name}."
    schemes = _security_schemes(profile)
    skill = AgentSkill(id=profile.name, name=profile.name, description=description, tags=["agent"])
    return AgentCard(
        name=profile.name,
        description=description,
        version=profile.version,
        supported_interfaces=[  # the preferred one first
            AgentInterface(url=base + path, protocol_binding=binding, protocol_version=version)
            for version in versions
            for binding, path in (("JSONRPC", RPC_PATH), ("HTTP+JSON", REST_PATH))
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=profile.has_push,
            extended_agent_card=True,
            extensions=[
                AgentExtension(
                    uri=extension.URI,
                    description="Takes the caller's last messages, its deadline, its call path and "
                    "whom it works for.",
                    required=False,
                )
            ],
        ),
        default_input_modes=input_modes(profile.inputs),
        default_output_modes=[TEXT] if profile.output_schema is None else [DATA, TEXT],
        skills=[skill],
        security_schemes=schemes,
        security_requirements=[SecurityRequirement(schemes={n: StringList()}) for n in schemes],
    )


def _security_schemes(profile: AgentProfile) -> dict[str, SecurityScheme]:
    """Return the accepted security schemes; none for an open agent."""
    if not profile.asks_for_token:
        return {}
    bearer = HTTPAuthSecurityScheme(
        scheme="bearer", description="An API key of the agent, or a token of an issuer it trusts."
    )
    schemes = {"bearer": SecurityScheme(http_auth_security_scheme=bearer)}
    for number, issuer in enumerate(profile.issuers, 1):
        oidc = OpenIdConnectSecurityScheme(open_id_connect_url=issuer.rstrip("/") + DISCOVERY)
        schemes[f"oidc{number}"] = SecurityScheme(open_id_connect_security_scheme=oidc)
    return schemes


def _exposed_base(profile: AgentProfile, request: Request) -> str | None:
    """Return the URL under which the agent is exposed, if the caller used it."""
    exposed = profile.exposed_url
    host = request.headers.get("host", "").lower().removesuffix(":443").removesuffix(":80")
    return exposed if exposed and host == exposed.partition("://")[2] else None


def _own_base(request: Request) -> str:
    """Return the base URL that the caller used; an invalid `Host` is ignored."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        name, port = request.scope.get("server") or ("localhost", None)
        host = f"[{name}]" if ":" in str(name) else str(name)
        host = f"{host}:{port}" if port else host
    return f"{request.url.scheme}://{host}{request.scope.get(PREFIX, '')}"
