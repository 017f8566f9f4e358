"""Enforces the outgoing policy in aiohttp, as `guarded_backend` does in httpx.

The resolver returns only allowed addresses. Each new socket checks its address again, since IP
addresses in URLs bypass the resolver.
"""

import socket
from collections import OrderedDict
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from diptych.net.outgoing import KEEP_SECONDS, OutgoingPolicy

_MAX_KNOWN = 4_096  # resolved addresses to remember; they are used right after the lookup


class GuardedConnector(aiohttp.TCPConnector):
    """aiohttp's connector, restricted by a policy; needs a running loop. `options` are aiohttp's.

    It has no limit on connections, since each run needs its own. `policy.allow` permits private
    addresses for a host.
    """

    def __init__(self, policy: OutgoingPolicy, **options: Any) -> None:  # noqa: ANN401 - aiohttp's
        self.policy = policy
        resolver = _GuardedResolver(policy)
        super().__init__(
            resolver=resolver,
            socket_factory=resolver.make_socket,
            limit=0,
            keepalive_timeout=KEEP_SECONDS,
            **options,
        )
        self._factory = cast("partial[ResponseHandler]", partial(_ResponseHandler, loop=self._loop))


class StaleConnection(aiohttp.ServerDisconnectedError):
    """A reused connection was closed instead of returning a response."""


class _ResponseHandler(ResponseHandler):
    """aiohttp's protocol; detects stale connections, and skips resuming when it is not paused.

    aiohttp 3.14 resumes it after each HTTP chunk read, for nothing, which took 5 % of the
    instructions of a chat whose answer arrived at once (decision 191).
    """

    _is_paused = False
    _requests = 0  # sent over this connection

    def set_response_params(self, **params: Any) -> None:  # noqa: ANN401 - aiohttp's, for each request
        self._requests += 1
        super().set_response_params(**params)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        is_closed = isinstance(exc, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
        if is_closed and self._requests > 1:
            exc = StaleConnection()
        super().set_exception(exc, *cause)

    def pause_reading(self) -> None:
        self._is_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT002 - aiohttp's
        if self._is_paused:
            self._is_paused = False
            super().resume_reading(resume_parser)


class _GuardedResolver(AbstractResolver):
    def __init__(self, policy: OutgoingPolicy) -> None:
        self._policy = policy
        self._hosts: OrderedDict[str, str] = OrderedDict()  # by resolved address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve a host. Raises `AddressRefused`, and `OSError` if it has no address."""
        found = [_result(host, each, port) for each in await self._policy.addresses(host, port)]
        if family != socket.AF_UNSPEC:
            found = [each for each in found if each["family"] == family]
        for each in found:
            self._hosts[each["host"]] = host
            self._hosts.move_to_end(each["host"])
        while len(self._hosts) > _MAX_KNOWN:
            self._hosts.popitem(last=False)
        return found

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def make_socket(self, info: Any) -> socket.socket:  # noqa: ANN401 - an entry of getaddrinfo
        """Return a socket for an address that aiohttp connects to. Raises `AddressRefused`."""
        family, kind, protocol, _, target = info
        address = str(target[0])
        self._policy.check(self._hosts.get(address, address), address)
        return socket.socket(family, kind, protocol)


def _result(host: str, address: str, port: int) -> ResolveResult:
    is_ipv6 = ip_address(address.partition("%")[0]).version == 6  # noqa: PLR2004
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
        proto=socket.IPPROTO_TCP,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
