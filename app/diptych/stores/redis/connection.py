"""The connection to Redis: redis-py's client with retries and health checks.

When a connection is lost, it is unknown whether its command was executed. It is retried, so each
command must be idempotent.
"""

import asyncio
import logging
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
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
from diptych.stores.redis.scripts import RUNS_WHEN_FULL, Script
from diptych.stores.redis.settings import COMMAND_TIMEOUT_SECONDS, read_url

MIN_VERSION = 7
FIRST_CONNECT_SECONDS = 2.0
HEALTH_CHECK_SECONDS = 1.0
HEALTH_TIMEOUT_SECONDS = 2.0
SENTINEL_TIMEOUT_SECONDS = 1.0
GRACE_SECONDS = 1.0  # before a lost store is reported as unavailable
SEND_SECONDS = 0.025  # between two batches of commands without a reply
MAX_UNSENT = 1_000  # commands; beyond that the oldest are dropped

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


class RedisConnection:
    """The shared client of the store; `prefix` is that of all keys."""

    def __init__(self, url: ValueProvider, prefix: str) -> None:
        self.prefix = prefix
        self.notes: Sequence[str] = ()
        self.losses = 0  # lost connections, after each of which the newest writes may be gone
        self._url = url
        self._current_url = ""
        self._client: Redis | None = None
        self._problem: Unreachable | None = Unreachable("the store has not been reached yet")
        self._failing_since = -math.inf  # by the event loop's clock
        self._full_since: float | None = None  # a Unix time
        self._epoch = ""
        self._epoch_listeners: list[Callable[[], None]] = []
        self._is_well = asyncio.Event()
        self._check_now = asyncio.Event()
        self._has_tried = asyncio.Event()
        self._closing = False
        self._unsent: deque[Command] = deque(maxlen=MAX_UNSENT)
        self._has_unsent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start connecting, and wait a moment for it; an unreachable store is not an error."""
        self._tasks = [
            asyncio.create_task(self._watch(), name="redis-health"),
            asyncio.create_task(self._send_forever(), name="redis-send"),
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_CONNECT_SECONDS):
                await self._has_tried.wait()

    async def aclose(self) -> None:
        self._closing = True
        self._problem = Unreachable("the store's connection is closed", is_settled=True)
        for task in self._tasks:
            await cancel(task)
        await self._drop_client()

    def on_new_epoch(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time the store was found to have been emptied."""
        self._epoch_listeners.append(listener)

    @property
    def epoch(self) -> str:
        if not self._epoch:
            raise StoreError(self.unavailable_reason() or str(self._problem))
        return self._epoch

    def unavailable_reason(self) -> str:
        """Return why the store is unavailable, and what to do; "" if it is available."""
        if self._problem is None:
            return ""
        since = asyncio.get_running_loop().time() - self._failing_since
        is_new = not self._problem.is_settled and since < GRACE_SECONDS
        return "" if is_new else str(self._problem)

    def full_reason(self) -> str:
        """Return since when the store is full; "" while it has room for new runs."""
        if self._full_since is None:
            return ""
        since = datetime.fromtimestamp(self._full_since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"full since {since}, and accepts no writes until it has room"

    # Commands

    async def execute(self, *commands: Command) -> Sequence[Reply]:
        """Send commands in one pipeline, and return their replies.

        Raises `StoreError` within 2 seconds, or at once if the store is known to be unavailable.
        """

        async def ask(client: Redis) -> Sequence[Reply]:
            if len(commands) == 1:
                return [await _ask(client, *commands[0])]
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute()

        return await self._promptly(ask)

    async def run(self, script: Script, method: str, *arguments: Argument) -> Reply:
        """Run a method of a script. Raises `StoreError` as `execute` does."""
        return await self._promptly(self._script(script, method, arguments))

    async def run_when_available(self, script: Script, method: str, *arguments: Argument) -> Reply:
        """Run a method of a script; wait while the store is unavailable, without a limit."""
        return await self._try(self._script(script, method, arguments), waits=True)

    def send(self, *command: Argument) -> None:
        """Send a command in the background, without its reply; it may be lost."""
        self._unsent.append(command)
        self._has_unsent.set()

    async def refresh_epoch(self) -> str:
        """Read the store's epoch now; it changes when the store is emptied."""
        return self._update_epoch(await self.run(RUNS_WHEN_FULL, "epoch", secrets.token_hex(4)))

    async def client(self) -> Redis:
        """Return redis-py's client, once the store is healthy."""
        while self._client is None or not self._is_well.is_set():
            await self._is_well.wait()
        return self._client

    def check_now(self) -> None:
        """Run a health check at once, after an error."""
        self._check_now.set()

    def _script(
        self, script: Script, method: str, arguments: Sequence[Argument]
    ) -> Callable[[Redis], Awaitable[Reply]]:
        rest = (0, self.prefix, method, *arguments)

        async def ask(client: Redis) -> Reply:
            try:
                return await _ask(client, "EVALSHA", script.sha, *rest)
            except NoScriptError:
                return await _ask(client, "EVAL", script.source, *rest)

        return ask

    async def _promptly(self, ask: Callable[[Redis], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_SECONDS):
                return await self._try(ask, waits=False)
        except TimeoutError:
            reason = self.unavailable_reason() or "the store does not answer"
            raise StoreError(f"{reason}; try again later") from None

    async def _try(self, ask: Callable[[Redis], Awaitable[T]], *, waits: bool) -> T:
        """Retry `ask` when connections are lost and masters are replaced."""
        backoff = _backoff()
        while True:
            reason = self.unavailable_reason()
            if reason and (self._closing or not waits):
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
                    elif not waits or found.is_settled or not _is_temporary(error):
                        raise StoreError(f"{found}; try again later") from error
            await asyncio.sleep(backoff.next_delay())

    async def _send_forever(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            commands, self._unsent = self._unsent, deque(maxlen=MAX_UNSENT)
            if self._client and self._problem is None:
                pipeline = self._client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                with suppress(RedisError, OSError):
                    await pipeline.execute(raise_on_error=False)
            await asyncio.sleep(SEND_SECONDS)

    # Health

    async def _watch(self) -> None:
        """Check the store's health every second, and at once after `check_now`."""
        backoff = _backoff()
        while True:
            began = asyncio.get_running_loop().time()
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
            self._has_tried.set()
            self._check_now.clear()
            if self._problem:
                await asyncio.sleep(backoff.next_delay())
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_CHECK_SECONDS):
                    await self._check_now.wait()

    def _fail(self, problem: Unreachable, since: float) -> None:
        if self._problem is None or not self._has_tried.is_set():
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
        epoch = await self._script(RUNS_WHEN_FULL, "epoch", (secrets.token_hex(4),))(client)
        self._update_epoch(epoch)
        try:  # a write without effect, which a full store still refuses
            await _ask(client, "SET", f"{self.prefix}:full", "1", "XX")
            self._full_since = None
        except OutOfMemoryError:
            self._full_since = self._full_since or time.time()

    def _update_epoch(self, found: bytes) -> str:
        epoch = found.decode()
        was_emptied = self._epoch not in {"", epoch}
        self._epoch = epoch
        if was_emptied:
            self.losses += 1
            _logger.error("the store was emptied: its runs are lost")
            for listener in self._epoch_listeners:
                listener()
        return epoch

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


async def _ask(client: Redis, *command: Argument) -> Reply:
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
