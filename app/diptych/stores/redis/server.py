"""A Redis server: redis-py's client with health checks, shared by the stores of one URL."""

import asyncio
import logging
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from diptych.core.errors import ConfigError, StoreError, StoreFull
from diptych.net.backoff import Backoff
from diptych.net.redaction import SECRETS
from diptych.ports import ValueProvider
from diptych.stores.redis.channels import RedisChannels
from diptych.stores.redis.scripts import RUNS_WHEN_FULL
from diptych.stores.redis.settings import read_url

if TYPE_CHECKING:
    from diptych.stores.redis.connection import RedisConnection

MIN_VERSION = 7
HEALTH_CHECK_SECONDS = 1.0
HEALTH_TIMEOUT_SECONDS = 2.0
SENTINEL_TIMEOUT_SECONDS = 1.0
NOT_REACHED = "the store has not been reached yet"
GRACE_SECONDS = 1.0  # before a lost store is reported as unavailable

Argument: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Argument, ...]
Reply: TypeAlias = Any
T = TypeVar("T")
_SECTIONS = ("server", "replication", "persistence", "memory")  # of INFO
_CONNECTION_ERRORS = (RedisConnectionError, RedisTimeoutError, OSError)
_logger = logging.getLogger(__name__)


class Unreachable(Exception):
    """The store is unavailable; the message says why, and what to do.

    `is_settled`: it is a configuration error, so waiting a moment will not help.
    """

    def __init__(self, message: str, *, is_settled: bool = False) -> None:
        super().__init__(message)
        self.is_settled = is_settled


class RedisServer:
    """The shared client for one URL, and the health of its server.

    It works between the first `join` and the last `leave`.
    """

    def __init__(self, url: ValueProvider) -> None:
        self.notes: Sequence[str] = ()
        self.losses = 0  # lost connections, after each of which the newest writes may be gone
        self.channels = RedisChannels(self)
        self._url = url
        self._current_url = ""
        self._client: Redis | None = None
        self._problem: Unreachable | None = Unreachable(NOT_REACHED)
        self._failing_since = -math.inf  # by the event loop's clock
        self._connections: dict[RedisConnection, None] = {}
        self._is_well = asyncio.Event()
        self._check_now = asyncio.Event()
        self._has_tried = False
        self._tasks: list[asyncio.Task[None]] = []

    def join(self, connection: "RedisConnection") -> None:
        """Check a connection's keys from now on; the first check begins at once."""
        self._connections[connection] = None
        self._check_now.set()
        if not self._tasks:
            self._has_tried = False
            self._tasks = [
                asyncio.create_task(self._watch(), name="redis-health"),
                asyncio.create_task(self.channels.receive_forever(), name="redis-feed"),
            ]

    async def leave(self, connection: "RedisConnection") -> None:
        """Check its keys no more; without any others, disconnect."""
        self._connections.pop(connection, None)
        if not self._connections:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                await cancel(task)
            if not self._tasks:  # nobody has joined meanwhile
                self._is_well.clear()
                self._problem, self._failing_since = Unreachable(NOT_REACHED), -math.inf
                await self._drop_client()

    @property
    def ready_client(self) -> Redis | None:
        """Redis-py's client, if the server was well at its last check."""
        return self._client if self._problem is None else None

    def unavailable_reason(self) -> str:
        """Return why the server is unavailable, and what to do; "" if it is available."""
        if self._problem is None:
            return ""
        since = asyncio.get_running_loop().time() - self._failing_since
        is_new = not self._problem.is_settled and since < GRACE_SECONDS
        return "" if is_new else str(self._problem)

    async def client(self) -> Redis:
        """Return redis-py's client, once the store is healthy."""
        while self._client is None or not self._is_well.is_set():
            await self._is_well.wait()
        return self._client

    def check_now(self) -> None:
        """Run a health check at once, after an error."""
        self._check_now.set()

    async def ask(
        self,
        ask: Callable[[Redis], Awaitable[T]],
        unavailable_reason: Callable[[], str],
        may_wait: Callable[[], bool],
    ) -> T:
        """Ask, and retry when connections are lost and masters are replaced.

        Raises `StoreError` while the store is unavailable, unless it `may_wait`.
        """
        backoff = _backoff()
        while True:
            reason = unavailable_reason()
            if reason and not may_wait():
                raise StoreError(f"{reason}; try again later")
            if self._client and not reason:
                try:
                    return await ask(self._client)
                except _CONNECTION_ERRORS:
                    self.losses += 1
                    self.check_now()
                except OutOfMemoryError as error:
                    raise StoreFull("the store is full; try again later") from error
                except ResponseError as error:
                    found = unreachable(error)
                    if isinstance(error, ReadOnlyError):
                        self.check_now()
                    elif not may_wait() or found.is_settled or not _is_temporary(error):
                        raise StoreError(f"{found}; try again later") from error
            await asyncio.sleep(backoff.next_delay())

    # Health

    async def _watch(self) -> None:
        """Check the store's health every second, and at once after `check_now`."""
        backoff = _backoff()
        while True:
            began = asyncio.get_running_loop().time()
            self._check_now.clear()
            try:
                async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                    await self._check(await self._configured())
            except Exception as error:  # noqa: BLE001 - whatever it is, only this loop reconnects
                self._fail(unreachable(error), began)
                await self._disconnect()
            else:
                self._problem, self._failing_since = None, math.inf
                self._is_well.set()
                backoff.reset()
            self._has_tried = True
            if self._problem:
                for each in tuple(self._connections):
                    each.note_failed_check()
                await asyncio.sleep(backoff.next_delay())
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_CHECK_SECONDS):
                    await self._check_now.wait()

    def _fail(self, problem: Unreachable, since: float) -> None:
        if self._problem is None or not self._has_tried:
            _logger.warning("the store is unavailable: %s", problem)  # once, until it is back
        self._failing_since = min(self._failing_since, since)
        self._problem = problem
        self._is_well.clear()

    async def _configured(self) -> Redis:
        """Return the client for the current URL, which may appear or change at any time."""
        url = self._url() or self._current_url
        if not url:
            raise Unreachable("the store's URL is missing", is_settled=True)
        if self._client is None or url != self._current_url:
            SECRETS.remember(url)
            await self._drop_client()
            self._client = read_url(url).client()
            self._current_url = url
        return self._client

    async def _check(self, client: Redis) -> None:
        """Check that the server is usable and the master. Raises many kinds of errors."""
        pool = client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            before, found = pool.master_address, None
            with suppress(TimeoutError):
                async with asyncio.timeout(SENTINEL_TIMEOUT_SECONDS):
                    found = await pool.get_master_address()  # type: ignore[no-untyped-call]
            if before and found and found != before:
                await self._disconnect()
        self.notes = read_info(await client.info(*_SECTIONS))
        await self._check_keys(client)

    async def _check_keys(self, client: Redis) -> None:
        """Read the epoch of each connection's keys, and try a write, without effect, that a full
        store refuses.
        """
        connections, script = tuple(self._connections), RUNS_WHEN_FULL
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command("SCRIPT", "LOAD", script.source)
        for each in connections:
            token = secrets.token_hex(4)
            pipeline.execute_command("EVALSHA", script.sha, 0, each.prefix, "epoch", token)
            pipeline.execute_command("SET", f"{each.prefix}:full", "1", "XX")
        loaded, *replies = await pipeline.execute(raise_on_error=False)
        for each, found, written in zip(connections, replies[::2], replies[1::2], strict=True):
            is_full = isinstance(written, OutOfMemoryError)
            for reply in (loaded, found, written):
                if isinstance(reply, Exception) and not (is_full and reply is written):
                    raise reply
            each.note_check(found, is_full=is_full)

    async def _disconnect(self) -> None:
        """Close all connections, even those in use: commands waiting on them are retried."""
        self.losses += 1
        if self._client:
            with suppress(Exception):  # the next health check reconnects anyway
                await self._client.connection_pool.disconnect()

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client:
            with suppress(Exception):
                await client.connection_pool.disconnect()
                if isinstance(client.connection_pool, SentinelConnectionPool):
                    await client.connection_pool.sentinel_manager.aclose()


async def ask_redis(client: Redis, *command: Argument) -> Reply:
    """Send a command, and return its reply."""
    return await client.execute_command(*command)  # type: ignore[no-untyped-call] # theirs


async def cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait for its end.

    One `Task.cancel` may not be enough: redis-py queries Sentinels with `asyncio.wait_for`, which
    on Python 3.11 loses a cancellation that arrives together with the result.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


def _backoff() -> Backoff:
    return Backoff(initial=0.05, maximum=1.0)


def read_info(facts: Mapping[str, Any]) -> Sequence[str]:
    """Check the reply to INFO; return warnings about unsafe settings.

    Raises `Unreachable` if the server is unusable.
    """
    version = str(facts.get("redis_version", "of no version"))
    number = re.match(r"\d+", version)
    if not number or int(number[0]) < MIN_VERSION:
        raise Unreachable(
            f"the store is Redis {version}; Redis {MIN_VERSION} or newer is needed",
            is_settled=True,
        )
    if facts.get("redis_mode") == "cluster":
        raise Unreachable(_CLUSTER, is_settled=True)
    if facts.get("loading"):
        raise Unreachable(_LOADING)
    if facts.get("role") == "slave":
        raise Unreachable(_REPLICA)
    notes = []
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        notes.append(f"maxmemory-policy is {policy}: Redis may drop runs; set it to noeviction")
    if facts.get("aof_enabled") == 0:
        notes.append("appendonly is off: runs are lost when Redis restarts; set it to yes")
    return tuple(notes)


def _is_temporary(error: ResponseError) -> bool:
    """Whether the server refuses a command because of a temporary state."""
    return str(error).startswith(("MISCONF", "NOREPLICAS", "BUSY ", "MASTERDOWN"))


def unreachable(error: Exception) -> Unreachable:  # noqa: C901 - a table
    """Translate an error; the message contains neither the server's text nor the URL."""
    match error:
        case Unreachable():
            return error
        case ConfigError():
            return Unreachable(str(error), is_settled=True)
        case AuthenticationError():
            message = "the store refuses the login: check user and password in its URL"
            return Unreachable(message, is_settled=True)
        case NoPermissionError():
            return Unreachable(_MISSING_PERMISSION, is_settled=True)
        case BusyLoadingError():
            return Unreachable(_LOADING)
        case MasterNotFoundError():
            return Unreachable(
                "the store's sentinels are unreachable, or do not know the master named in its URL"
            )
        case ReadOnlyError():
            return Unreachable(_REPLICA)
        case TimeoutError() | RedisTimeoutError():
            return Unreachable("the store does not answer")
    for part, message, is_settled in _KNOWN_ERRORS:
        if part in str(error):
            return Unreachable(message, is_settled=is_settled)
    if isinstance(error, ResponseError):
        return Unreachable(f"the store refuses a command ({error.status_code or 'ERR'})")
    if not isinstance(error, RedisError | OSError):
        _logger.error("the store's connection broke", exc_info=error)
    return Unreachable("the store cannot be reached")


_LOADING = "the store is still loading its data"
_REPLICA = "the store is a read-only replica: use its master"
_CLUSTER = (
    "the store is a Redis in cluster mode, which spreads the keys of a run over its nodes: "
    "use a Redis without cluster mode, or with Sentinel"
)
_MISSING_PERMISSION = "the store's user lacks permissions: see its ACL rules"
_KNOWN_ERRORS = (  # part of the server's or the TLS library's text, message, is_settled
    ("DENIED", "the store is in protected mode: set a password, also in its URL", True),
    ("DB index", "the store has no database with the number in its URL", True),
    ("Invalid Database", "the store has no database with the number in its URL", True),
    ("script can't", _MISSING_PERMISSION, True),  # of a command inside a script
    ("CERTIFICATE", "the store's TLS certificate is not trusted: set ssl_ca_certs", True),
    ("MISCONF", "the store accepts no writes: it cannot save to its disk", False),
    ("NOREPLICAS", "the store accepts no writes: it has too few replicas", False),
    ("BUSY ", "the store is busy with a script", False),
)
