"""The policy for outgoing connections: which addresses an agent may connect to.

It is applied at each connect, to the address actually used, so DNS rebinding does not get around
it.
"""

import asyncio
import os
import socket
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias
from urllib.parse import urlsplit

IPAddress: TypeAlias = IPv4Address | IPv6Address

KEEP_SECONDS = 3.0
"""How long to keep idle connections: less than the 5 s after which uvicorn, llama.cpp and most
other servers close them. A request sent at that moment fails, and may have been read or not."""

METADATA_ADDRESSES = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure
            "192.0.0.192",  # Oracle
        ),
    )
)
"""Metadata services of clouds, which hand out credentials without authentication."""

_EMBEDDING = tuple(
    map(
        IPv6Network,
        (
            "64:ff9b::/96",  # NAT64 (RFC 6052)
            "64:ff9b:1::/48",  # NAT64 of a network's own (RFC 8215), mostly its /96
            "::ffff:0:0:0/96",  # SIIT (RFC 2765)
            "::/96",  # IPv4-compatible (RFC 4291, 2.5.5.1), but for :: and ::1
        ),
    )
)
"""IPv6 prefixes whose last 32 bits are an embedded IPv4 address."""


class AddressRefused(OSError):
    """An address that an agent may not connect to."""


class OutgoingPolicy:
    """The policy of one HTTP client.

    Only the hosts in `named`, those of URLs in the manifest, may have private addresses. In a pod,
    other containers share loopback, so names that resolve to it are refused; URLs that say
    `localhost` or `127.0.0.1` are allowed. Link-local addresses and metadata services are always
    refused.
    """

    def __init__(self, urls: Iterable[str], *, is_in_pod: bool | None = None) -> None:
        self.named = {host_of(url) for url in urls}
        self._is_in_pod = (
            "KUBERNETES_SERVICE_HOST" in os.environ if is_in_pod is None else is_in_pod
        )

    def allow(self, url: str) -> None:
        """Treat a URL as named, for example one from the card of a trusted agent."""
        self.named.add(host_of(url))

    def refusal(self, host: str, address: str) -> str | None:
        """Return why connecting to a host at an address is refused; None if it is allowed."""
        ip = _embedded(ip_address(address.partition("%")[0]))
        host = host.lower().strip("[]")
        if ip in METADATA_ADDRESSES or ip.is_link_local:
            return "link-local addresses and metadata services are not allowed"
        if ip.is_unspecified or ip.is_multicast:
            return "its address is not a host's"
        if ip.is_loopback:
            return self._loopback_refusal(host)
        if not _is_public(ip) and host not in self.named:
            return "its address is private, and the manifest does not name it"
        return None

    def check(self, host: str, address: str) -> None:
        """Raise `AddressRefused` if connecting to a host at an address is refused."""
        if (reason := self.refusal(host, address)) is not None:
            raise AddressRefused(reason)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host, and return its allowed addresses, at least one.

        Raises `AddressRefused` if none is allowed, and `OSError` if the host has none.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        all_addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
        allowed = [each for each in all_addresses if self.refusal(host, each) is None]
        if not allowed:
            self.check(host, next(iter(all_addresses)))
        return allowed

    def _loopback_refusal(self, host: str) -> str | None:
        if self._is_in_pod and not is_loopback_name(host):
            return "its name resolves to loopback, which other containers of the pod share"
        if host in self.named or any(is_loopback_name(name) for name in self.named):
            return None
        return "its address is loopback, and the manifest does not name it"


def host_of(url: str) -> str:
    """Return the host of a URL in lower case; empty if there is none."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def is_loopback_name(host: str) -> bool:
    """Whether a host of a URL says that it is this machine, without resolving it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_public(ip: IPAddress) -> bool:
    is_site_local = isinstance(ip, IPv6Address) and ip.is_site_local  # deprecated, but still routed
    return ip.is_global and not is_site_local


def _embedded(ip: IPAddress) -> IPAddress:
    """Return the IPv4 address embedded in an IPv6 address, or the address itself."""
    return next(_embedded_addresses(ip), ip) if isinstance(ip, IPv6Address) else ip


def _embedded_addresses(ip: IPv6Address) -> Iterator[IPv4Address]:
    for address in (ip.ipv4_mapped, ip.sixtofour):
        if address is not None:
            yield address
    if ip.teredo is not None:
        yield ip.teredo[1]
    if any(ip in prefix for prefix in _EMBEDDING) and int(ip) > 1:
        yield IPv4Address(int(ip) & 0xFFFFFFFF)
