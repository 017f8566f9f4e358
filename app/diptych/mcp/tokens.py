"""The tokens of an agent for its tool servers: encrypted in its store, renewed when they expire."""

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Sequence
from typing import TypeVar

import httpx2
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from pydantic import BaseModel, ValidationError

from diptych.core.errors import StoreError
from diptych.mcp.oauth import (
    Grant,
    OAuthClient,
    is_insufficient_scope,
    is_refused,
    with_more_scopes,
)
from diptych.mcp.transport import AuthorizationFailed, SendRequest
from diptych.ports.stores import Vault

KEPT_SECONDS = 90 * 24 * 3600.0  # of a grant since it was last renewed
MAX_RENEWALS = 2  # for one request: a new token, and more scopes
M = TypeVar("M", bound=BaseModel)
logger = logging.getLogger(__name__)


class TokenBook:
    """Encrypts the entries of a vault: with the first key, or with one of this process only."""

    def __init__(self, vault: Vault, keys: Sequence[str] = ()) -> None:
        self._vault = vault
        ciphers = list(map(_fernet, keys)) or [Fernet(Fernet.generate_key())]
        self._cipher = MultiFernet(ciphers)

    async def load(self, key: str, kind: type[M]) -> M | None:
        """Return an entry; None if it is absent or not ours to decrypt. Raises `StoreError`."""
        return self._read(key, kind, await self._vault.get(key))

    async def save(self, key: str, entry: BaseModel, seconds: float = KEPT_SECONDS) -> None:
        """Store an entry. Raises `StoreError`."""
        text = json.dumps([key, entry.model_dump_json()])
        await self._vault.put(key, self._cipher.encrypt(text.encode()), seconds)

    async def take(self, key: str, kind: type[M]) -> M | None:
        """Return an entry and delete it, once. Raises `StoreError`."""
        return self._read(key, kind, await self._vault.take(key))

    def _read(self, key: str, kind: type[M], stored: bytes | None) -> M | None:
        if stored is None:
            return None
        try:
            name, text = json.loads(self._cipher.decrypt(stored))
            return kind.model_validate_json(text) if name == key else None
        except (InvalidToken, ValueError, ValidationError):
            logger.warning("a stored OAuth token cannot be decrypted with DIPTYCH_TOKEN_KEY")
            return None


class ServerTokens:
    """The tokens for one MCP server, of the agent or of one person (`subject`)."""

    def __init__(self, client: OAuthClient, book: TokenBook, subject: str = "") -> None:
        self.client = client
        self._book = book
        self._key = grant_key(client.server_url, subject)
        self._grant: Grant | None = None
        self._lock = asyncio.Lock()

    async def authorize(self, request: httpx2.Request, send: SendRequest) -> httpx2.Response:
        """Send a request with the token; if that is refused, again with a new one.

        Raises `AuthorizationFailed`.
        """
        token = await self._current()
        for _ in range(MAX_RENEWALS):
            response = await _send_with(token, request, send)
            if not is_refused(response):
                return response
            await response.aclose()
            token = await self._renewed(response, token)
        return await _send_with(token, request, send)

    async def _current(self) -> str | None:
        """Return a token that has not expired; None if that needs a new discovery."""
        grant = self._grant
        if grant is None or grant.is_expired:
            async with self._lock:
                grant = await self._load()
                if grant and grant.is_expired:
                    grant = await self._refresh(grant)
        return grant.token.access_token if grant else None

    async def _renewed(self, refusal: httpx2.Response, used: str | None) -> str:
        async with self._lock:
            grant = await self._load()
            if grant is None or grant.token.access_token == used or grant.is_expired:
                grant = await self._renew(refusal, grant)
            return grant.token.access_token

    async def _renew(self, refusal: httpx2.Response, prior: Grant | None) -> Grant:
        server = await self.client.discover(refusal)
        if prior and is_insufficient_scope(refusal):
            server = with_more_scopes(server, prior, refusal)
        return await self._save(await self.client.client_credentials(server))

    async def _refresh(self, grant: Grant) -> Grant | None:
        """Renew an expired grant; None if that needs a new discovery."""
        try:
            return await self._save(await self.client.client_credentials(grant.server))
        except AuthorizationFailed:
            return None

    async def _load(self) -> Grant | None:
        try:
            grant = await self._book.load(self._key, Grant)
        except StoreError as error:
            raise AuthorizationFailed(f"its token cannot be read: {error}") from error
        if grant and not self.client.trusts(grant):
            grant = None
        if grant:
            grant.redact_secrets()
        self._grant = grant
        return grant

    async def _save(self, grant: Grant) -> Grant:
        self._grant = grant
        try:
            await self._book.save(self._key, grant)
        except StoreError as error:
            raise AuthorizationFailed(f"its token cannot be stored: {error}") from error
        return grant


def grant_key(url: str, subject: str) -> str:
    """Return the key of a grant, which reveals neither the server nor the person."""
    return "grant:" + hashlib.sha256(json.dumps([url, subject]).encode()).hexdigest()


async def _send_with(
    token: str | None, request: httpx2.Request, send: SendRequest
) -> httpx2.Response:
    if token:
        request.headers["authorization"] = f"Bearer {token}"
    return await send(request)


def _fernet(key: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))
