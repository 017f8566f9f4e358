"""Enforces the outgoing policy in httpx, as `guarded_connector` does in aiohttp."""

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx

from diptych.net.outgoing import KEEP_SECONDS, OutgoingPolicy
from diptych.net.proxies import proxy_for


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The maximum number of connections (None: unlimited), and of idle ones kept alive."""

    connections: int | None
    kept_alive: int


def use_guarded_pool(
    transport: httpx.AsyncHTTPTransport,
    policy: OutgoingPolicy | None,
    tls: ssl.SSLContext,
    limits: PoolLimits,
) -> None:
    """Replace the pool of an httpx transport by one that follows the policy and the proxies.

    The transport has no public argument for that.
    """
    transport._pool = _Pools(policy, tls, limits)  # noqa: SLF001


class _Pools(httpcore.AsyncConnectionPool):
    """Connects directly, or through the environment's proxies, each with its own pool."""

    def __init__(
        self, policy: OutgoingPolicy | None, tls: ssl.SSLContext, limits: PoolLimits
    ) -> None:
        self._policy = policy
        self._options: dict[str, Any] = {
            "ssl_context": tls,
            "max_connections": limits.connections,
            "max_keepalive_connections": limits.kept_alive,
            "keepalive_expiry": KEEP_SECONDS,
            "network_backend": GuardedBackend(policy) if policy else None,
        }
        self._proxied: dict[str, httpcore.AsyncHTTPProxy] = {}
        super().__init__(**self._options)

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        url = proxy_for(bytes(request.url).decode("latin-1"))
        if url is None:
            return await super().handle_async_request(request)
        if url not in self._proxied:
            if self._policy:
                self._policy.allow(url)
            proxy = httpx.Proxy(url)
            self._proxied[url] = httpcore.AsyncHTTPProxy(
                str(proxy.url), proxy_auth=proxy.raw_auth, **self._options
            )
        return await self._proxied[url].handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._proxied.values():
            await pool.aclose()
        await super().aclose()


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves host names itself, and connects only to the addresses that it checked."""

    def __init__(self, policy: OutgoingPolicy) -> None:
        self._policy = policy
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that accepts. Raises `httpcore.ConnectError`."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._policy.addresses(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(type(error).__name__) from error
        connect, options = self._inner.connect_tcp, (port, timeout, local_address, socket_options)
        *others, last = addresses
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await connect(address, *options)
        return await connect(last, *options)

    async def sleep(self, seconds: float) -> None:
        """Wait; the pool calls this between retries."""
        await asyncio.sleep(seconds)
