"""One agent that can be asked: its card, fetched in the background and kept fresh.

Not here: asking it anything (`errand`).
"""

import asyncio
import json
import logging
import random
from dataclasses import dataclass

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard

from diptych.adapters.a2a.http_client import GARBAGE, card_url, identity, may_lead_to, origin
from diptych.config.settings import PeerConfig
from diptych.errors import DelegationError
from diptych.loop.catalog import Peer, Unavailable

CARD_TIMEOUT = 5.0  # seconds for a card, from connecting to its last byte
CARD_LIMIT = 256 * 1024  # bytes
REFRESH = 30.0  # seconds between two looks at a card
DESCRIPTION_LIMIT = 2_000  # characters of a card's words that reach our prompt
SKILLS_LIMIT, SKILL_LIMIT = 20, 100  # names of skills, and characters of each
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0  # seconds between tries while there is none

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """How a peer stands; `problem` is None when it can be asked, `tried` false before the start."""

    name: str
    tried: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class Known:
    """A peer whose card was read: the client for it, and every spelling of its identity."""

    card: AgentCard
    client: Client
    peer: Peer
    identities: frozenset[str]
    takes_headers: bool


class PeerWatch:
    """Keeps one peer's card. `known` stays when the peer goes down: it may be back before us."""

    def __init__(self, address: PeerConfig, http: httpx.AsyncClient) -> None:
        self.address = address
        self.known: Known | None = None
        self.tried = asyncio.Event()
        self._problem: str | None = "it was not asked yet"
        self._http = http
        self._factory = ClientFactory(
            ClientConfig(httpx_client=http, supported_protocol_bindings=["JSONRPC"])
        )
        self._look_now = asyncio.Event()

    @property
    def status(self) -> PeerStatus:
        return PeerStatus(self.address.name, self.tried.is_set(), self._problem)

    def snapshot(self) -> Peer | Unavailable:
        if self.known and self._problem is None:
            return self.known.peer
        return Unavailable("agent", self.address.name, self._problem or "")

    def mark_down(self, problem: str) -> None:
        """Take it that the peer cannot be reached, until its card is read again."""
        self._set_problem(problem)
        self._look_now.set()

    def headers(self) -> dict[str, str]:
        """Read the peer's secret headers. Raises `DelegationError` while one is missing."""
        read = {name: secret() for name, secret in self.address.headers.items()}
        if missing := [name for name, value in read.items() if value is None]:
            raise DelegationError(
                "unavailable", f"the secret of its header {missing[0]} is missing"
            )
        return {name: value for name, value in read.items() if value is not None}

    async def watch(self) -> None:
        """Look at the card for ever."""
        wait = FIRST_WAIT
        while True:
            problem = await self._look()
            self._set_problem(problem)
            self.tried.set()
            pause = REFRESH if problem is None else wait
            wait = FIRST_WAIT if problem is None else min(wait * 2, LONGEST_WAIT)
            await self._rest(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._look_now.wait()
        except TimeoutError:
            pass
        self._look_now.clear()

    async def _look(self) -> str | None:
        """Read the card; gives what is wrong, None if nothing is."""
        try:
            card = await self._fetch()
        except DelegationError as error:
            return error.message
        except (TimeoutError, httpx.TimeoutException):
            return "it does not answer"
        except (httpx.HTTPError, httpx.InvalidURL):
            return "it cannot be reached"
        except GARBAGE:
            return "its agent card makes no sense"
        if self.known is None or self.known.card != card:
            return self._meet(card)
        return None

    async def _fetch(self) -> AgentCard:
        body = bytearray()
        async with (
            asyncio.timeout(CARD_TIMEOUT),
            self._http.stream(
                "GET", card_url(self.address.url), headers=self.headers()
            ) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise DelegationError(
                    "unavailable", f"it answers HTTP {response.status_code} for its agent card"
                )
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > CARD_LIMIT:
                    raise DelegationError("unavailable", "its agent card is too large")
        return parse_agent_card(json.loads(body))

    def _meet(self, card: AgentCard) -> str | None:
        try:
            client = self._factory.create(card)
        except ValueError:
            return "its agent card offers no JSON-RPC interface"
        urls = [i.url for i in card.supported_interfaces if i.protocol_binding == "JSONRPC"]
        home, is_trusted = self.address.url, self.address.share_context
        if not all(may_lead_to(home, url, is_trusted=is_trusted) for url in urls):
            return "its agent card leads to another host without https"
        self.known = Known(
            card=card,
            client=client,
            peer=_peer(self.address.name, card),
            identities=frozenset(identity(url) for url in (home, *urls)),
            takes_headers=all(origin(home) == origin(url) for url in urls),
        )
        return None

    def _set_problem(self, problem: str | None) -> None:
        if problem != self._problem:
            if problem is None:
                _log.info("agent %s can be asked", self.address.name)
            else:
                _log.warning("agent %s is unavailable: %s", self.address.name, problem)
        self._problem = problem


def _peer(name: str, card: AgentCard) -> Peer:
    """Give what our model is told: others write cards, so there is a limit to it."""
    skills = tuple(skill.name[:SKILL_LIMIT] for skill in card.skills[:SKILLS_LIMIT])
    return Peer(name, card.description[:DESCRIPTION_LIMIT], skills)
