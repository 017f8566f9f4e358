"""The connection that all commands to the store share; it reconnects by itself.

When it is lost, nobody knows which of the commands in flight were executed. Each is sent again, so
each must have the same effect when it is executed twice.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum

from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from diptych.core.errors import StoreError, StoreFull
from diptych.stores.redis.locator import (
    MasterLocator,
    RawConnection,
    Unreachable,
    reconnect_backoff,
    unreachable,
)
from diptych.stores.redis.pipeline import ConnectionLost, Pipeline, Reply
from diptych.stores.redis.scripts import ALL, EPOCH, PROBE, Script
from diptych.stores.redis.server_info import ServerInfo, read_info
from diptych.stores.redis.tasks import cancel
from diptych.stores.redis.write_buffer import Argument, Command

COMMAND_TIMEOUT_SECONDS = 1.8  # of callers that do not wait for a store that is away
FIRST_CONNECT_SECONDS = 2.0
HEALTH_CHECK_SECONDS = 1.0
REPLY_TIMEOUT_SECONDS = 2.0  # of a health check, after which the connection counts as dead
RECONNECT_GRACE_SECONDS = 1.0  # for which a lost connection is not reported yet

_logger = logging.getLogger(__name__)


class ConnectionState(Enum):
    """The stages of the connection; `MultiplexedConnection._enter` changes it."""

    CONNECTING = "connecting"  # for the first time
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"  # for good


class MultiplexedConnection:
    """One connection for all callers; `prefix` stands before each key of the store."""

    def __init__(self, locator: MasterLocator, prefix: str) -> None:
        self.prefix = prefix
        self.server = ServerInfo()
        self._locator = locator
        self._pipeline = Pipeline()
        self._state = ConnectionState.CONNECTING
        self._may_execute = (
            asyncio.Event()
        )  # callers need not wait: CONNECTED, or CLOSED, which raises
        self._has_tried = asyncio.Event()  # to connect
        self._silent_since = -math.inf  # by the event loop's clock; inf while CONNECTED
        self._last_error = Unreachable("the store has not been reached yet")
        self._full_since: float | None = None  # a Unix time
        self._epoch = ""
        self._epoch_listeners: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to connect, and wait a moment for it; a store that is away is no error."""
        self._task = asyncio.create_task(self._stay_connected(), name="redis-connection")
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_CONNECT_SECONDS):
                await self._has_tried.wait()

    async def aclose(self) -> None:
        await cancel(self._task)
        self._last_error = Unreachable("the store's connection is closed", is_settled=True)
        self._enter(ConnectionState.CLOSED)

    def on_new_epoch(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time the store turns out to have been emptied."""
        self._epoch_listeners.append(listener)

    @property
    def epoch(self) -> str:
        if not self._epoch:
            raise StoreError(self.unavailable_reason() or str(self._last_error))
        return self._epoch

    def unavailable_reason(self) -> str:
        """Say why the store cannot be used now, and what to do; empty if it can."""
        if self._state is ConnectionState.CONNECTED:
            return ""
        if self._state is ConnectionState.RECONNECTING and not self._last_error.is_settled:
            silence = asyncio.get_running_loop().time() - self._silent_since
            if silence < RECONNECT_GRACE_SECONDS:
                return ""
        return str(self._last_error)

    def full_reason(self) -> str:
        """Return since when the store is full; empty while it has room for new runs."""
        if self._full_since is None:
            return ""
        since = datetime.fromtimestamp(self._full_since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"full since {since}, and takes no writes until it has room"

    # Commands

    async def execute(self, *commands: Command) -> Sequence[Reply]:
        """Send commands together and give their replies.

        Raises `StoreError` within 2 seconds, at once while the store is known to be away.
        """
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_SECONDS):
                replies = await self._execute(commands, waits=False)
        except TimeoutError:
            raise self._timeout_error() from None
        for reply in replies:
            _raise_if_error(reply)
        return replies

    async def run_script(self, script: Script, *arguments: Argument) -> Reply:
        """Run a script. Raises as `execute` does."""
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_SECONDS):
                return await self._run_script(script, arguments, waits=False)
        except TimeoutError:
            raise self._timeout_error() from None

    async def run_script_when_available(self, script: Script, *arguments: Argument) -> Reply:
        """Run a script, and wait for as long as the store is away. The caller sets a limit."""
        return await self._run_script(script, arguments, waits=True)

    def send(self, *commands: Command) -> None:
        """Send commands if that is possible now; their replies are not read."""
        if self._state is ConnectionState.CONNECTED:
            for command in commands:
                self._pipeline.send(command)

    async def refresh_epoch(self) -> str:
        """Read the store's epoch now; it is another one after the store was emptied."""
        found = await self.run_script(EPOCH, secrets.token_hex(4))
        return self._update_epoch(found)

    async def _run_script(
        self, script: Script, arguments: Sequence[Argument], *, waits: bool
    ) -> Reply:
        rest = (0, self.prefix, *arguments)
        [reply] = await self._execute([("EVALSHA", script.sha, *rest)], waits=waits)
        if isinstance(reply, NoScriptError):
            [reply] = await self._execute([("EVAL", script.source, *rest)], waits=waits)
        _raise_if_error(reply)
        return reply

    async def _execute(self, commands: Sequence[Command], *, waits: bool) -> Sequence[Reply]:
        backoff = reconnect_backoff()
        while True:
            if not waits and (reason := self.unavailable_reason()):
                raise StoreError(f"{reason}; try again later")
            await self._may_execute.wait()
            if self._state is ConnectionState.CLOSED:
                raise StoreError(str(self._last_error))
            try:
                replies = await self._pipeline.execute(commands)
            except ConnectionLost:
                continue
            if not (waits and any(map(_is_temporary, replies))):
                return replies
            await asyncio.sleep(backoff.next_delay())

    def _timeout_error(self) -> StoreError:
        reason = self.unavailable_reason() or "the store does not answer"
        return StoreError(f"{reason}; try again later")

    # The connection

    def _enter(self, state: ConnectionState) -> None:
        """Change the state, and what follows from it; whoever left CONNECTED fails its callers."""
        self._state = state
        if state is ConnectionState.CONNECTED:
            self._silent_since = math.inf
        else:
            now = asyncio.get_running_loop().time()
            self._silent_since = min(now, self._silent_since)
            self._pipeline.fail_all()
        if state in {ConnectionState.CONNECTED, ConnectionState.CLOSED}:
            self._may_execute.set()
        else:
            self._may_execute.clear()

    async def _stay_connected(self) -> None:
        backoff = reconnect_backoff()
        while True:
            try:
                await self._use_until_lost(await self._locator.connect())
            except Unreachable as error:
                if self._state is ConnectionState.CONNECTED or not self._has_tried.is_set():
                    _logger.warning("the store is lost: %s", error)  # once, until it is back
                self._last_error = error
            if self._state is ConnectionState.CONNECTED:
                backoff.reset()
                self._enter(ConnectionState.RECONNECTING)
            else:
                self._enter(self._state)
            self._has_tried.set()
            await asyncio.sleep(backoff.next_delay())

    async def _use_until_lost(self, connection: RawConnection) -> None:
        """Use a connection until it is lost. Raises `Unreachable`."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pipeline.write_forever(connection))
                group.create_task(self._pipeline.read_forever(connection))
                group.create_task(self._check_health())
                group.create_task(self._locator.watch_master())
        except ExceptionGroup as errors:
            error = errors.exceptions[0]
            if not isinstance(error, Unreachable | RedisError | OSError | ConnectionLost):
                _logger.error("the store's connection broke", exc_info=error)
            raise unreachable(error) from errors
        finally:
            await connection.disconnect(nowait=True)

    async def _check_health(self) -> None:
        """Look at the server and try it once, then ask it for the epoch for ever.

        Raises `Unreachable`.
        """
        [found] = await self._execute_promptly(("INFO",))
        self.server = read_info(found)
        await self._execute_promptly(*(("SCRIPT", "LOAD", script.source) for script in ALL))
        await self._execute_promptly(("EVAL", PROBE.source, 0, self.prefix))
        while True:
            command: Command = ("EVAL", EPOCH.source, 0, self.prefix, secrets.token_hex(4))
            # A write that changes nothing, and that a full store refuses all the same.
            room: Command = ("SET", f"{self.prefix}:full", "1", "XX")
            epoch, reply = await self._execute_promptly(command, room)
            self._update_epoch(epoch)
            is_full = isinstance(reply, OutOfMemoryError)
            self._full_since = (self._full_since or time.time()) if is_full else None
            self._enter(ConnectionState.CONNECTED)
            self._has_tried.set()
            await asyncio.sleep(HEALTH_CHECK_SECONDS)

    async def _execute_promptly(self, *commands: Command) -> Sequence[Reply]:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_SECONDS):
                replies = await self._pipeline.execute(commands)
        except TimeoutError:
            self._silent_since = min(sent_at, self._silent_since)
            raise Unreachable("the store does not answer") from None
        for reply in replies:
            if isinstance(reply, ResponseError) and not isinstance(reply, OutOfMemoryError):
                raise unreachable(reply) from reply
        return replies

    def _update_epoch(self, found: bytes) -> str:
        epoch = found.decode()
        was_emptied = self._epoch not in {"", epoch}
        self._epoch = epoch
        if was_emptied:
            _logger.error("the store was emptied: the runs that were in it are lost")
            for listener in self._epoch_listeners:
                listener()
        return epoch


def _is_temporary(reply: Reply) -> bool:
    """Whether the server refuses a command because of a state that will pass."""
    if isinstance(reply, ClusterDownError | MasterDownError | TryAgainError):
        return True
    is_error = isinstance(reply, ResponseError)
    return is_error and str(reply).startswith(("MISCONF", "NOREPLICAS", "BUSY "))


def _raise_if_error(reply: Reply) -> None:
    if isinstance(reply, OutOfMemoryError):
        raise StoreFull("the store is full; try again later") from reply
    if isinstance(reply, ResponseError):
        raise StoreError(f"{unreachable(reply)}; try again later") from reply
