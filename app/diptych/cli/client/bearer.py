"""The proof of who asks, on every request to an agent: `Authorization: Bearer`."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable

import httpx

TOKEN_VARIABLE = "DIPTYCH_TOKEN"  # noqa: S105 - its name
RENEWED_AFTER = 1800.0
"""Seconds after which a token is replaced, well before it expires."""


class BearerToken(httpx.Auth):
    """Sends a token with each request; `request` makes one, and may block.

    A token that the agent does not accept any more is replaced once, unless it is new.
    """

    def __init__(self, request: Callable[[], str]) -> None:
        self._request = request
        self._token = ""
        self._made_at = float("-inf")
        self._lock = asyncio.Lock()

    async def current(self) -> str:
        """Give a token that is still good. Raises what `request` raises."""
        async with self._lock:
            if time.monotonic() - self._made_at > RENEWED_AFTER:
                await self._renew()
            return self._token

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        token = await self.current()
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code != httpx.codes.UNAUTHORIZED:
            return
        async with self._lock:
            if self._token == token:
                await self._renew()
            if self._token == token:
                return  # the same again: it would be refused again
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    async def _renew(self) -> None:
        self._token = await asyncio.to_thread(self._request)
        self._made_at = time.monotonic()


def token_of_environment() -> BearerToken | None:
    """Give the token of `DIPTYCH_TOKEN`, which is read again when it is refused."""
    if not os.environ.get(TOKEN_VARIABLE, "").strip():
        return None
    return BearerToken(lambda: os.environ.get(TOKEN_VARIABLE, "").strip())
