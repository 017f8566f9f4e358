"""Which HTTP proxy a request goes through: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

All clients of the process ask here, as aiohttp, httpx and requests each read these variables
otherwise, and none of them all that NO_PROXY may hold. Lower case wins, as in curl.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

_SCHEMES = ("http", "https")  # of URLs, and of proxies
_PORTS = {"http": 80, "https": 443}


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy for a request; None if it goes directly.

    Loopback and link-local addresses are never asked for through a proxy: there they are its own.
    """
    scheme = url.partition(":")[0].lower()
    proxy = _proxies().get(scheme)
    if proxy is None:
        return None
    return None if _is_exempt(url, _variable("NO_PROXY")) else proxy


def through(proxy: str | None, reason: str) -> str:
    """Name the proxy, without its password, in the reason why a request failed."""
    return f"through the proxy {shown(proxy)}: {reason}" if proxy else reason


def shown(url: str) -> str:
    """Return a proxy's scheme, host and port."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def proxy_notices() -> Iterator[str]:
    """Say for the log what the environment's proxies mean for this process."""
    proxies = _proxies()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        value = _variable(name)
        if value and _usable(value) is None:
            kind = value.partition(":")[0] if "://" in value else "another"
            yield f"{name} is not used: its scheme is {kind}, and only http and https are spoken"
    if proxies:
        by_scheme = ", ".join(f"{scheme} through {shown(url)}" for scheme, url in proxies.items())
        exempt = _variable("NO_PROXY") or "nothing (NO_PROXY is empty)"
        yield f"requests to models, tools, agents, hooks, issuers: {by_scheme}; exempt: {exempt}"


def _proxies() -> dict[str, str]:
    """Return the proxy of each scheme that has one."""
    everything = _variable("ALL_PROXY")
    found = ((scheme, _variable(f"{scheme.upper()}_PROXY") or everything) for scheme in _SCHEMES)
    return {scheme: usable for scheme, value in found if (usable := _usable(value))}


def _usable(value: str) -> str | None:
    url = value if "://" in value else f"http://{value}"
    parts = _split(url)
    return url if parts.scheme in _SCHEMES and parts.hostname else None


def _variable(name: str) -> str:
    return (os.environ.get(name.lower()) or os.environ.get(name) or "").strip()


def _is_exempt(url: str, no_proxy: str) -> bool:
    parts = _split(url)
    host = (parts.hostname or "").rstrip(".")
    address = _address(host)
    if host == "localhost" or (address and (address.is_loopback or address.is_link_local)):
        return True
    with suppress(ValueError):
        port = parts.port or _PORTS.get(parts.scheme, 0)
        return any(matches(host, port, address) for matches in _exemptions(no_proxy))
    return False


_Exemption = Callable[[str, int, IPv4Address | IPv6Address | None], bool]


@lru_cache(maxsize=8)
def _exemptions(no_proxy: str) -> tuple[_Exemption, ...]:
    return tuple(map(_exemption, no_proxy.lower().replace(",", " ").split()))


def _exemption(entry: str) -> _Exemption:
    """Read `*`, a block of addresses, or an address or a name (and all below it) with its port."""
    if entry == "*":
        return lambda *_: True
    with suppress(ValueError):
        block = ip_network(entry.strip("[]"), strict=False)
        return lambda _, __, address: address is not None and address in block
    name, _, port = entry.rpartition(":") if entry.rpartition(":")[2].isdigit() else (entry, "", "")
    wanted = int(port or 0)
    alone = _address(name.strip("[]"))
    suffix = name.removeprefix("*").lstrip(".")

    def matches(host: str, port: int, address: IPv4Address | IPv6Address | None) -> bool:
        if wanted not in (0, port):
            return False
        return address == alone if alone else host == suffix or host.endswith(f".{suffix}")

    return matches


def _address(host: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(host.partition("%")[0])
    return None


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")
