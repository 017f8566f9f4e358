"""The settings of a Redis store, and the redis-py client for its URL.

A URL is `redis://`, `rediss://` or `unix://`, with the options of redis-py's `from_url`
(`ssl_ca_certs=…` and the like), or `redis+sentinel://[user:pass@]host:port,host:port/name[/db]`
(`rediss+sentinel://` with TLS), with user and password of the master. The sentinels' own are
`sentinel_username=` and `sentinel_password=`.

With ACLs, the user needs `~<prefix>:* &<prefix>:* +@read +@write +@scripting +@pubsub
+@connection +info +time`.
"""

import re
import socket
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import (
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from diptych.core.errors import ConfigError
from diptych.manifest.settings import RETENTION
from diptych.ports import ValueProvider

CONNECT_TIMEOUT_SECONDS = 1.0
COMMAND_TIMEOUT_SECONDS = 1.8  # for callers that do not wait for an unavailable store
MAX_CONNECTIONS = 64
_SENTINEL_SECONDS = 0.5
_SENTINEL_PORT = 26379
_SCHEME = re.compile(r"(rediss?|unix|rediss?\+sentinel)://")
_OUR_OPTIONS = (
    *("max_connections", "timeout", "retry_on_timeout", "health_check_interval"),
    *("socket_timeout", "socket_connect_timeout", "protocol", "decode_responses", "encoding"),
)
_KEEPALIVE = {  # detects a silently lost peer within 3 seconds
    getattr(socket, name): value
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 3_000),
    )
    if hasattr(socket, name)
}


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The settings of a store; times in seconds.

    `url` is read again every second. `prefix` is that of all keys: processes with the same prefix
    share their runs. A session is kept for `retention` after its last run, and up to 10 % longer. A
    lease expires `lease_seconds` after its last renewal. The queue of a session holds at most
    `max_queued_runs`.
    """

    url: ValueProvider
    prefix: str
    retention: float = RETENTION
    lease_seconds: float = 10.0
    max_queued_runs: int = 1_000


class _MasterPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connects to the sentinels' current master; while they are down, to the last known one."""

    async def get_master_address(self) -> tuple[str, int]:
        try:
            found = await super().get_master_address()  # type: ignore[no-untyped-call] # theirs
        except MasterNotFoundError:
            if self.master_address is None:
                raise
            found = self.master_address
        return cast("tuple[str, int]", found)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, or the sentinels of the server named `master`.

    `server` and `sentinels` are connection options of redis-py.
    """

    server: dict[str, Any] = field(repr=False)
    connection_class: type[Any] = Connection
    master: str | None = None
    sentinels: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def client(self) -> Redis:
        """Return a client, which connects on first use and never retries."""
        fixed: dict[str, Any] = {
            "protocol": 2,
            "driver_info": None,
            "retry": Retry(NoBackoff(), 0),
            # Callers limit the time of a command. With its own timeout, redis-py would use
            # `asyncio.wait_for`, which loses cancellations on Python 3.11.
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        }
        if self.connection_class is not UnixDomainSocketConnection:
            fixed |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
        pool: dict[str, Any] = {
            "max_connections": MAX_CONNECTIONS,
            "timeout": COMMAND_TIMEOUT_SECONDS,
        }
        if self.master is None:
            options = {**fixed, **self.server, **pool}
            return Redis.from_pool(
                BlockingConnectionPool(connection_class=self.connection_class, **options)
            )
        short = {"socket_timeout": _SENTINEL_SECONDS, "socket_connect_timeout": _SENTINEL_SECONDS}
        is_tls = self.connection_class is SSLConnection
        sentinel = Sentinel([])  # type: ignore[no-untyped-call] # theirs
        for each in self.sentinels:
            sentinel.sentinels.append(Redis(**{**fixed, **short, **each, "ssl": is_tls}))
        server = {
            name: value for name, value in self.server.items() if name not in {"host", "port"}
        }
        client: Redis = sentinel.master_for(
            self.master, connection_pool_class=_MasterPool, ssl=is_tls, **fixed, **server, **pool
        )
        return client


def read_url(url: str) -> Endpoint:
    """Parse a URL. Raises `ConfigError`, without quoting the URL, which has secrets."""
    scheme = _SCHEME.match(url)
    if not scheme:
        raise ConfigError(
            "the store's URL must start with redis://, rediss://, unix:// or redis+sentinel://"
        )
    try:
        return _sentinel_endpoint(url) if scheme[1].endswith("+sentinel") else _endpoint(url)
    except ConfigError:
        raise
    except (ValueError, TypeError):  # redis-py's message may contain a password
        raise ConfigError("the store's URL is not valid: check its port and options") from None


def _endpoint(url: str) -> Endpoint:
    found: dict[str, Any] = dict(parse_url(url))
    connection_class = found.pop("connection_class", Connection)
    if connection_class is UnixDomainSocketConnection:
        if not found.get("path"):
            raise ConfigError("the store's URL names no socket: unix:///path/to/redis.sock")
    else:
        found.setdefault("host", "localhost")
        path = urlsplit(url).path.strip("/")
        if path and not path.isdigit():
            raise ConfigError("the store's URL may only have a database number as its path")
    for name in _OUR_OPTIONS:
        found.pop(name, None)
    try:
        connection_class(**found)
    except Exception as error:  # redis-py raises many kinds of errors for invalid options
        raise ConfigError("the store's URL has an unknown or invalid option") from error
    return Endpoint(found, connection_class)


def _sentinel_endpoint(url: str) -> Endpoint:
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    if not hosts or not name:
        raise ConfigError(
            "the store's URL must name sentinels and their master: "
            "redis+sentinel://host:26379,host:26379/mymaster"
        )
    options = dict(parse_qsl(parts.query))
    own = {
        short: options.pop(f"sentinel_{short}")
        for short in ("username", "password")
        if f"sentinel_{short}" in options
    }
    scheme = parts.scheme.removesuffix("+sentinel")
    query = urlencode(options)
    endpoint = _endpoint(f"{scheme}://{credentials}{at}localhost/{database}?{query}")
    plain = _endpoint(f"{scheme}://localhost?{query}").server
    sentinels = tuple({**plain, **_host(host), **own} for host in hosts.split(","))
    return Endpoint(endpoint.server, endpoint.connection_class, unquote(name), sentinels)


def _host(text: str) -> dict[str, Any]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ConfigError("the store's URL names a sentinel without a host")
    return {"host": parts.hostname, "port": parts.port or _SENTINEL_PORT}
