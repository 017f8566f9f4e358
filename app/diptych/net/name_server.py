"""Whether the pod's name server answers: the nearest cause of hosts that cannot be reached."""

import asyncio
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

RESOLV_CONF = Path("/etc/resolv.conf")
DNS_PORT = 53
LOOK_SECONDS = 5.0  # between two looks while something cannot be reached
ANSWER_SECONDS = 2.0
TRIES = 2  # a datagram may be lost


def has_host_name(url: str) -> bool:
    """Whether a URL's host is a name that must be looked up."""
    host = urlsplit(url).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return host not in {"", "localhost"}
    return False


class NameServerWatch:
    """Looks at the name server while `is_needed` says that something cannot be reached."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        self._is_needed = is_needed
        self._silent: tuple[str, float] | None = None

    def silence(self) -> tuple[str, str] | None:
        """Return the address of a name server that does not answer, and a sentence about it."""
        if self._silent is None:
            return None
        address, at = self._silent
        since = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return address, f"the name server does not answer since {since}"

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once, if that is needed."""
        servers, name = _settings()
        is_silent = bool(self._is_needed() and servers)
        for server in servers * TRIES if is_silent else ():
            is_silent = is_silent and not await _answers(server, name)
        if not is_silent:
            self._silent = None
        elif self._silent is None:
            self._silent = servers[0], time.time()


def unresolved(error: OSError) -> str:
    """Say why a host has no address: nobody knows its name, or nobody answers."""
    if error.errno == socket.EAI_AGAIN:
        return f"the name server {', '.join(_settings()[0])} does not answer"
    return "its host name is not known"


def _settings() -> tuple[tuple[str, ...], str]:
    """Return the name servers, and a name about which they need ask nobody else."""
    servers: list[str] = []
    name = "localhost"
    try:
        lines = RESOLV_CONF.read_text().splitlines()
    except OSError:
        lines = []
    for words in map(str.split, lines):
        match words:
            case ["nameserver", server, *_]:
                servers.append(server)
            case ["search", domain, *_]:
                name = domain
    return tuple(servers[:3]), name


async def _answers(server: str, name: str) -> bool:
    """Send one query; any answer at all is one."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.strip(".").split("."))
    query = b"\x44\x49\x01\x00\x00\x01" + bytes(6) + labels + b"\x00\x00\x01\x00\x01"
    loop = asyncio.get_running_loop()
    [(family, *_, address), *_] = socket.getaddrinfo(server, DNS_PORT, flags=socket.AI_NUMERICHOST)
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        connection.settimeout(0)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.sock_connect(connection, address)
                await loop.sock_sendall(connection, query)
                return bool(await loop.sock_recv(connection, 512))
        except OSError:  # refused, or in time nothing at all
            return False
