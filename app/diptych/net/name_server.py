"""Checks whether the pod's name server responds, a likely cause of unreachable hosts."""

import asyncio
import re
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

RESOLV_CONF = Path("/etc/resolv.conf")
DNS_PORT = 53
CHECK_SECONDS = 5.0  # between checks while something is unreachable
ANSWER_SECONDS = 2.0
TRIES = 2  # a datagram may be lost


def has_host_name(url: str) -> bool:
    """Whether a URL's host is a name that must be resolved."""
    host = urlsplit(url).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return host not in {"", "localhost"}
    return False


def unresolved(error: OSError) -> str:
    """Return why resolving a host failed: its name is unknown, or the name server is down."""
    if error.errno == socket.EAI_AGAIN:
        return f"the name server {', '.join(_setting('nameserver'))} does not answer"
    return "its host name is not known"


class NameServerWatch:
    """Checks the name server while `is_needed` returns True: something is unreachable."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed = is_needed
        self._silent_since: float | None = None  # a Unix time

    def silence(self) -> tuple[str, str] | None:
        """Return the addresses of the silent name servers and a message; None if one responds."""
        if self._silent_since is None:
            return None
        since = datetime.fromtimestamp(self._silent_since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = f"the name server has not answered since {since}"
        return ",".join(_setting("nameserver")), text

    async def run(self) -> None:
        """Check regularly, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Check once, if needed."""
        servers = _setting("nameserver")
        is_silent = bool(self._is_needed() and servers)
        for server in servers * TRIES:
            is_silent = is_silent and not await _answers(server)
        self._silent_since = (self._silent_since or time.time()) if is_silent else None


def _setting(name: str) -> list[str]:
    try:
        return re.findall(rf"^{name}\s+(\S+)", RESOLV_CONF.read_text(), re.MULTILINE)
    except OSError:
        return []


async def _answers(server: str) -> bool:
    """Query the pod's own domain, which a cluster's server knows itself; any answer counts."""
    [domain, *_] = [*_setting("search"), "localhost"]
    parts = filter(None, domain.split("."))  # none for `search .`
    labels = b"".join(bytes([len(part)]) + part.encode() for part in parts)
    query = b"DI\x01\x00\x00\x01" + bytes(6) + labels + b"\x00\x00\x01\x00\x01"
    loop = asyncio.get_running_loop()
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(
            server, DNS_PORT, flags=socket.AI_NUMERICHOST
        )
        with socket.socket(family, socket.SOCK_DGRAM) as connection:
            connection.settimeout(0)
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.sock_connect(connection, address)
                await loop.sock_sendall(connection, query)
                return bool(await loop.sock_recv(connection, 512))
    except OSError:  # no address, refused, or timed out
        return False
