"""The keys of OpenID Connect issuers: discovered, cached, and kept while the issuer is down."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import orjson

from diptych.access.certificates import ca_problem
from diptych.net.proxies import proxy_for, through
from diptych.net.received import TooMuchReceived, is_compressed, read_bounded
from diptych.ports import ValueProvider

REFRESH_SECONDS = 60.0  # minimum between fetches, and interval of the age checks
RETRY_SECONDS = 10.0  # between attempts to fetch the first keys
MAX_AGE_SECONDS = 3600.0  # of cached keys; bounds how long a revoked key is accepted
TIMEOUT_SECONDS = 5.0
MAX_BYTES = 2**18  # of a document
MAX_KEYS = 100
DISCOVERY = "/.well-known/openid-configuration"  # OpenID Connect Discovery 1.0, section 4
_logger = logging.getLogger(__name__)


class IssuerKeys:
    """The keys of one issuer. `now` returns seconds of a monotonic clock.

    `read_ca` returns the CA certificates (PEM) to trust instead of the public ones; while it
    returns None, the issuer is not trusted.
    """

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        now: Callable[[], float],
        read_ca: ValueProvider | None = None,
    ) -> None:
        self.url = url
        self.read_ca = read_ca
        self._session = session
        self._now = now
        self._keys: Sequence[Mapping[str, Any]] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    def keys(self) -> Sequence[Mapping[str, Any]]:
        """Return the keys of the last fetch; none before the first."""
        return self._keys

    async def refresh(self, *, is_unknown_key: bool) -> None:
        """Fetch the keys if they are old, or a token names an unknown one.

        Waits for a fetch already in progress. If the issuer is unreachable, the old keys stay.
        """
        if self._fetching is None and self._is_due(is_unknown_key=is_unknown_key):
            self._tried_at = self._now()
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(self._on_fetched)
        if self._fetching:
            await asyncio.shield(self._fetching)

    async def aclose(self) -> None:
        """Cancel a fetch in progress."""
        if self._fetching:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _is_due(self, *, is_unknown_key: bool) -> bool:
        now = self._now()
        pause = RETRY_SECONDS if self._fetched_at is None else REFRESH_SECONDS
        if self._tried_at is not None and now - self._tried_at < pause:
            return False
        is_old = self._fetched_at is None or now - self._fetched_at >= MAX_AGE_SECONDS
        return is_unknown_key or is_old

    def _on_fetched(self, _: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                found = await self._get(self.url.rstrip("/") + DISCOVERY)
                keys = (await self._get(self._jwks_uri(found))).get("keys")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = through(proxy_for(self.url), _why(error))
            _logger.warning("the keys of issuer %s could not be fetched: %s", self.url, reason)
            return
        if isinstance(keys, list):
            found_keys = [key for key in keys[:MAX_KEYS] if isinstance(key, dict)]
            if found_keys != self._keys:  # else keep the object: verified tokens stay cached
                self._keys = found_keys
            self._fetched_at = self._now()

    def _jwks_uri(self, discovered: Mapping[str, Any]) -> str:
        if discovered.get("issuer") != self.url:  # Discovery 1.0, section 4.3
            raise ValueError("its discovery document names another issuer")
        uri = discovered.get("jwks_uri")
        if not isinstance(uri, str) or not uri.startswith("https://"):
            raise ValueError("its discovery document names no https:// jwks_uri")
        return uri

    def _tls_context(self) -> ssl.SSLContext | bool:
        """Return a context with the trusted CAs; True stands for the public ones.

        Raises `ValueError`.
        """
        if self.read_ca is None:
            return True
        ca = self.read_ca()
        if ca is None:
            raise ValueError("its CA certificates are missing")
        if problem := ca_problem(ca):
            raise ValueError(problem)
        return ssl.create_default_context(cadata=ca)

    async def _get(self, url: str) -> Mapping[str, Any]:
        tls, proxy = self._tls_context(), proxy_for(url)
        async with self._session.get(url, allow_redirects=False, ssl=tls, proxy=proxy) as response:
            if response.status != 200:  # noqa: PLR2004
                raise ValueError(f"it responds with HTTP {response.status}")
            if is_compressed(response.headers):
                raise ValueError("it sends compressed responses, although none were requested")
            try:
                body = await read_bounded(response.content.iter_any(), MAX_BYTES)
            except TooMuchReceived:
                raise ValueError(f"its document is larger than {MAX_BYTES} bytes") from None
        found = orjson.loads(body)
        if not isinstance(found, dict):
            raise ValueError("its document is not a JSON object")  # noqa: TRY004
        return found


def _why(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not trusted; set its CA in access.issuers[].ca"
        case ValueError():
            return str(error)
        case _:
            return type(error).__name__
