"""Connects for aiohttp where a policy allows it, as `guarded_backend` does for httpx.

The resolver gives only addresses that were checked for their host, and the sockets check again:
an address that stands in a URL is looked up by nobody.
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

_MAX_KNOWN = 4_096  # addresses, the newest; one that is connected to was looked up just before


class GuardedConnector(aiohttp.TCPConnector):
    """aiohttp's connector, held to a policy; needs a running loop. `options` are aiohttp's.

    It has no limit on connections: each run needs its own. Hosts that may have private addresses
    are named by `policy.allow`.
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
    """A connection that had answered before was closed in place of an answer."""


class _ResponseHandler(ResponseHandler):
    """aiohttp's protocol; it tells stale connections, and what was not paused is not resumed.

    aiohttp 3.14 resumes it after each HTTP chunk that is read, and parses nothing each time. That
    took a twentieth of the instructions of a chat whose answer arrived at once (decision 191).
    """

    _is_paused = False
    _requests = 0  # that it has carried

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
        self._hosts: OrderedDict[str, str] = OrderedDict()  # by address, whose it was found to be

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look a host up. Raises `AddressRefused`, and `OSError` if it has no address."""
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
        """Do nothing: a resolver holds nothing open."""

    def make_socket(self, info: Any) -> socket.socket:  # noqa: ANN401 - an entry of getaddrinfo
        """Return a socket for an address, for aiohttp. Raises `AddressRefused`."""
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
