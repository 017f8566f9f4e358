"""Selects the HTTP proxy of a request from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

Used by all clients of the process: aiohttp, httpx and requests each interpret these variables in
their own way, and none supports all forms of NO_PROXY. Lower case wins, as in curl.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy for a request; None for a direct connection.

    Loopback and link-local addresses are always direct: to a proxy they would mean itself.
    """
    scheme = url.partition(":")[0].lower()
    proxy = _proxy(scheme) if scheme in _PORTS else None
    with suppress(ValueError):
        return None if proxy is None or _is_exempt(url) else proxy
    return None


def through(proxy: str | None, reason: str) -> str:
    """Add the proxy, without its password, to the reason why a request failed."""
    return f"through the proxy {shown(proxy)}: {reason}" if proxy else reason


def shown(url: str) -> str:
    """Return a proxy's scheme, host and port."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"


def proxy_notices() -> Iterator[str]:
    """Yield log lines about the proxies that this process uses and ignores."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        if (value := _variable(name)) and not _is_usable(value):
            yield f"{name} is ignored: only http:// and https:// proxies work, not {shown(value)}"
    if used := [f"{scheme} through {shown(url)}" for scheme in _PORTS if (url := _proxy(scheme))]:
        exempt = _variable("NO_PROXY") or "nothing (NO_PROXY is empty)"
        yield f"requests to models, tools, agents, hooks: {', '.join(used)}; exempt: {exempt}"


def _proxy(scheme: str) -> str | None:
    value = _variable(f"{scheme.upper()}_PROXY") or _variable("ALL_PROXY")
    if not value or not _is_usable(value):
        return None
    return value if "://" in value else f"http://{value}"


def _is_usable(value: str) -> bool:
    return "://" not in value or value.partition("://")[0].lower() in _PORTS


def _variable(name: str) -> str:
    return (os.environ.get(name.lower()) or os.environ.get(name) or "").strip()


def _is_exempt(url: str) -> bool:
    """Whether loopback, link-local or NO_PROXY exempts a URL. Raises `ValueError` if invalid."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS[parts.scheme]
    address = _block(host)
    if host == "localhost" or (address and (address.is_loopback or address.is_link_local)):
        return True
    for entry in _variable("NO_PROXY").lower().replace(",", " ").split():
        name, block = entry.removeprefix("*").lstrip("."), _block(entry.strip("[]"))
        if entry == "*" or (address and block and address.network_address in block):
            return True
        if any(f".{one}".endswith(f".{name}") for one in (host, f"{host}:{port}")):
            return True
    return False


def _block(text: str) -> IPv4Network | IPv6Network | None:
    """Parse a block of addresses or a single address; None if it is neither."""
    with suppress(ValueError):
        return ip_network(text, strict=False)
    return None
