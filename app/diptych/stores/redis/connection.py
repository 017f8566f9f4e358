"""A store's connection to Redis: its keys, at a server that other stores may share.

When a connection is lost, it is unknown whether its command was executed. It is retried, so each
command must be idempotent.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from diptych.core.errors import StoreError
from diptych.stores.redis.scripts import RUNS_WHEN_FULL, Script
from diptych.stores.redis.server import (
    NOT_REACHED,
    Argument,
    Command,
    RedisServer,
    Reply,
    ask_redis,
    cancel,
)
from diptych.stores.redis.settings import COMMAND_TIMEOUT_SECONDS

FIRST_CONNECT_SECONDS = 2.0
SEND_SECONDS = 0.025  # between two batches of commands without a reply
MAX_UNSENT = 1_000  # commands; beyond that the oldest are dropped

T = TypeVar("T")
_CLOSED = "the store's connection is closed"
_logger = logging.getLogger(__name__)


class RedisConnection:
    """The keys with a `prefix`, at a server that other stores may share."""

    def __init__(self, server: RedisServer, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self._full_since: float | None = None  # a Unix time
        self._epoch = ""
        self._epoch_listeners: list[Callable[[], None]] = []
        self._has_tried = asyncio.Event()
        self._is_closed = False
        self._unsent: deque[Command] = deque(maxlen=MAX_UNSENT)
        self._has_unsent = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start connecting, and wait a moment for it; an unreachable store is not an error."""
        self._sending = asyncio.create_task(self._send_forever(), name="redis-send")
        self.server.join(self)
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_CONNECT_SECONDS):
                await self._has_tried.wait()

    async def aclose(self) -> None:
        self._is_closed = True
        await cancel(self._sending)
        await self.server.leave(self)

    def on_new_epoch(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time the store was found to have been emptied."""
        self._epoch_listeners.append(listener)

    @property
    def epoch(self) -> str:
        if not self._epoch:
            raise StoreError(self.unavailable_reason() or NOT_REACHED)
        return self._epoch

    @property
    def losses(self) -> int:
        """The number of lost connections, after each of which the newest writes may be gone."""
        return self.server.losses

    def unavailable_reason(self) -> str:
        """Return why the store is unavailable, and what to do; "" if it is available."""
        return _CLOSED if self._is_closed else self.server.unavailable_reason()

    def full_reason(self) -> str:
        """Return since when the store is full; "" while it has room for new runs."""
        if self._full_since is None:
            return ""
        since = datetime.fromtimestamp(self._full_since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"full since {since}, and accepts no writes until it has room"

    def note_check(self, epoch: bytes, *, is_full: bool) -> None:
        """Take the result of a health check of the server."""
        self._update_epoch(epoch)
        self._full_since = (self._full_since or time.time()) if is_full else None
        self._has_tried.set()

    def note_failed_check(self) -> None:
        self._has_tried.set()

    async def execute(self, *commands: Command) -> Sequence[Reply]:
        """Send commands in one pipeline, and return their replies.

        Raises `StoreError` within 2 seconds, or at once if the store is known to be unavailable.
        """

        async def ask(client: Redis) -> Sequence[Reply]:
            if len(commands) == 1:
                return [await ask_redis(client, *commands[0])]
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

    def _script(
        self, script: Script, method: str, arguments: Sequence[Argument]
    ) -> Callable[[Redis], Awaitable[Reply]]:
        rest = (0, self.prefix, method, *arguments)

        async def ask(client: Redis) -> Reply:
            try:
                return await ask_redis(client, "EVALSHA", script.sha, *rest)
            except NoScriptError:
                return await ask_redis(client, "EVAL", script.source, *rest)

        return ask

    async def _promptly(self, ask: Callable[[Redis], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_SECONDS):
                return await self._try(ask, waits=False)
        except TimeoutError:
            reason = self.unavailable_reason() or "the store does not answer"
            raise StoreError(f"{reason}; try again later") from None

    async def _try(self, ask: Callable[[Redis], Awaitable[T]], *, waits: bool) -> T:
        return await self.server.ask(
            ask, self.unavailable_reason, may_wait=lambda: waits and not self._is_closed
        )

    async def _send_forever(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            commands, self._unsent = self._unsent, deque(maxlen=MAX_UNSENT)
            if client := self.server.ready_client:
                pipeline = client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                with suppress(RedisError, OSError):
                    await pipeline.execute(raise_on_error=False)
            await asyncio.sleep(SEND_SECONDS)

    def _update_epoch(self, found: bytes) -> str:
        epoch = found.decode()
        was_emptied = self._epoch not in {"", epoch}
        self._epoch = epoch
        if was_emptied:
            self.server.losses += 1
            _logger.error("the store was emptied: its runs are lost")
            for listener in self._epoch_listeners:
                listener()
        return epoch
