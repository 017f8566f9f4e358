"""Another agent's card, read in the background and kept fresh.

The SDK's `A2ACardResolver` bounds neither the size of a card nor the time to read it.
"""

import asyncio
import json
import logging
import random
import re
from dataclasses import dataclass

import httpx
from a2a.client import Client
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard

from diptych.a2a import extension
from diptych.a2a.http_client import (
    MALFORMED_ANSWER_ERRORS,
    card_url,
    identity,
    may_lead_to,
    origin,
    reachable,
)
from diptych.a2a.transport import JSONRPC, client_factory
from diptych.core.catalog import Peer, Unavailable
from diptych.core.errors import DelegationError
from diptych.core.text import one_line
from diptych.manifest.settings import PeerConfig
from diptych.net.backoff import Backoff
from diptych.net.outgoing import AddressRefused, OutgoingPolicy
from diptych.net.proxies import proxy_for, through
from diptych.net.received import TooMuchReceived, read_bounded
from diptych.net.redaction import SECRETS

CARD_TIMEOUT = 5.0  # seconds for a card, from connecting to its last byte
MAX_CARD_BYTES = 256 * 1024
REFRESH_INTERVAL = 10.0  # seconds until a card is read again
MAX_JITTER = 1.2  # times that
INITIAL_DELAY, MAX_DELAY = 0.2, 10.0  # seconds between attempts while the card cannot be read
MAX_DESCRIPTION_CHARS = 2_000  # of a card that reach our prompt
MAX_SKILLS, MAX_SKILL_CHARS = 20, 100  # names of skills that reach it, and characters of each

_HOST = re.compile(r"[a-z]+://[a-z0-9.:-]{1,100}")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResolvedPeer:
    """An agent whose card was read: its client and every spelling of its identity.

    `base_url` takes messages; `takes_headers` if it is on the same host as the card.
    """

    card: AgentCard
    client: Client
    entry: Peer
    identities: frozenset[str]
    takes_headers: bool
    base_url: str
    speaks_extension: bool


class PeerMonitor:
    """Keeps one agent's card fresh, in `run`.

    `reason` says why the agent is unavailable, None if it is available. `resolved` is kept while it
    is unavailable: a delegation may reach it before the card is read again. `first_attempt` is set
    after the first try.
    """

    def __init__(self, config: PeerConfig, http: httpx.AsyncClient, policy: OutgoingPolicy) -> None:
        self.config = config
        self._policy = policy
        self.reason: str | None = "it was not asked yet"
        self.resolved: ResolvedPeer | None = None
        self.first_attempt = asyncio.Event()
        self._http = http
        self._factory = client_factory(http)
        self._refresh_requested = asyncio.Event()

    def snapshot(self) -> Peer | Unavailable:
        if self.resolved and self.reason is None:
            return self.resolved.entry
        return Unavailable("agent", self.config.name, self.reason or "")

    def mark_unavailable(self, reason: str) -> None:
        """Withdraw the agent and start reading its card again."""
        self._set_reason(reason)
        self._refresh_requested.set()

    def headers(self) -> dict[str, str]:
        """Read the agent's secret headers. Raises `DelegationError` while one is missing."""
        headers = {name: read() for name, read in self.config.headers.items()}
        if missing := [name for name, value in headers.items() if value is None]:
            raise DelegationError(
                "unavailable", f"the secret of its header {missing[0]} is missing"
            )
        found = {name: value for name, value in headers.items() if value is not None}
        token = self.config.token() if self.config.token else None
        if token is None:
            return found
        SECRETS.remember(token)
        return found | {"Authorization": f"Bearer {token.strip()}"}

    def headers_for(self, peer: ResolvedPeer) -> dict[str, str]:
        """Return the headers of a request; none if the agent and its card are on different hosts.

        Raises `DelegationError`.
        """
        return self.headers() if peer.takes_headers else {}

    async def run(self) -> None:
        """Read the card again and again, until cancelled."""
        backoff = Backoff(INITIAL_DELAY, MAX_DELAY)
        while True:
            reason = await self._refresh()
            self._set_reason(reason)
            self.first_attempt.set()
            if reason is None:
                backoff.reset()
                jitter = random.uniform(0.8, MAX_JITTER)  # noqa: S311 - replicas do not ask together
                await self._wait(REFRESH_INTERVAL * jitter)
            else:
                await self._wait(backoff.next_delay())

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._refresh_requested.wait()
        except TimeoutError:
            pass
        self._refresh_requested.clear()

    async def _refresh(self) -> str | None:
        """Read the card; return the reason of a failure, or None."""
        try:
            card = await self._fetch_card()
        except DelegationError as error:
            return error.message
        except (TimeoutError, httpx.TimeoutException):
            return through(proxy_for(self.config.url), "it does not answer")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = "it cannot be reached" + _refusal(error)
            return through(proxy_for(self.config.url), reason)
        except MALFORMED_ANSWER_ERRORS:
            return "its agent card is not valid"
        if self.resolved is None or self.resolved.card != card:
            return self._resolve(card)
        return None

    async def _fetch_card(self) -> AgentCard:
        async with (
            asyncio.timeout(CARD_TIMEOUT),
            self._http.stream("GET", card_url(self.config.url), headers=self.headers()) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise DelegationError("unavailable", _no_card(response))
            try:
                body = await read_bounded(response.aiter_bytes(), MAX_CARD_BYTES)
            except TooMuchReceived:
                raise DelegationError("unavailable", "its agent card is too large") from None
        card = parse_agent_card(json.loads(body))
        for interface in card.supported_interfaces:
            interface.url = reachable(self.config.url, interface.url)
        return card

    def _resolve(self, card: AgentCard) -> str | None:
        """Adopt a new card; return why it is unusable, or None."""
        try:
            client = self._factory.create(card)
        except ValueError:
            return "its agent card offers no JSON-RPC interface"
        urls = [i.url for i in card.supported_interfaces if i.protocol_binding == JSONRPC]
        configured, is_trusted = self.config.url, self.config.share_context
        if strays := [u for u in urls if not may_lead_to(configured, u, is_trusted=is_trusted)]:
            return f"its agent card leads to another host without https{_named_host(strays[0])}"
        if is_trusted:
            for url in urls:
                self._policy.allow(url)
        self.resolved = ResolvedPeer(
            card=card,
            client=client,
            entry=_catalog_entry(self.config, card),
            identities=frozenset(identity(url) for url in (configured, *urls)),
            takes_headers=all(origin(configured) == origin(url) for url in urls),
            base_url=identity(urls[0]),
            speaks_extension=any(e.uri == extension.URI for e in card.capabilities.extensions),
        )
        return None

    def _set_reason(self, reason: str | None) -> None:
        if reason != self.reason:
            if reason is None:
                _logger.info("agent %s is available", self.config.name)
            else:
                _logger.warning("agent %s is unavailable: %s", self.config.name, reason)
        self.reason = reason


def _no_card(response: httpx.Response) -> str:
    """Return the error for a missing card, with the paths where some frameworks serve it."""
    reason = f"it answers HTTP {response.status_code} for its agent card"
    if response.status_code != httpx.codes.NOT_FOUND:
        return reason
    return f"{reason} at {response.url.path}; if it has one elsewhere, give that URL"


def _named_host(url: str) -> str:
    """Return the host of a card's URL if it is valid; never repeat other text from a card."""
    scheme, host, _ = origin(url)
    where = f"{scheme}://{host}"
    return f": {where}" if _HOST.fullmatch(where) else ""


def _refusal(error: BaseException | None) -> str:
    """Return why the address policy refused the agent, if that caused the error."""
    while error is not None and not isinstance(error, AddressRefused):
        error = error.__cause__ or error.__context__
    return f": {error}" if error else ""


def _catalog_entry(config: PeerConfig, card: AgentCard) -> Peer:
    """Return an agent's catalog entry, truncated: cards are written by others."""
    skills = tuple(
        one_line(SECRETS.redact(skill.name), MAX_SKILL_CHARS) for skill in card.skills[:MAX_SKILLS]
    )
    if (more := len(card.skills) - MAX_SKILLS) > 0:
        skills += (f"… and {more} more",)
    description = one_line(SECRETS.redact(card.description), MAX_DESCRIPTION_CHARS)
    return Peer(config.name, description, skills, None if config.share_context else False)
