"""One connection that all commands to the store share, and that comes back by itself.

What is asked at the same time goes out in one write, and the replies come in the order of the
commands, so that a command costs a fraction of what a pool's does. When the connection is lost,
nobody knows which of the commands in flight were done: each is sent again, and must bear that.

Not here: what the commands mean (`log`, `ownership`, `sessions`), what is heard (`feed`).
"""

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from diptych.adapters.redis.locator import MasterLocator, Unreachable, Wire, unreachable
from diptych.adapters.redis.outbox import Argument, Command, Outbox, Pauses, end
from diptych.adapters.redis.scripts import ALL, EPOCH, Script
from diptych.adapters.redis.server import Server, read_info
from diptych.errors import StoreError, StoreFull

ASK_SECONDS = 1.8  # after which a caller that cannot wait is told so
START_SECONDS = 2.0
PROBE_SECONDS = 1.0
SILENCE_SECONDS = 2.0  # without a reply, after which a connection counts as dead
GRACE_SECONDS = 1.0  # for which a lost connection is no problem yet

Reply: TypeAlias = Any
_log = logging.getLogger(__name__)


class _Cut(Exception):
    """The connection was lost before the reply came."""


class Link:
    """The shared connection to one store; `prefix` stands before all its keys."""

    def __init__(self, place: MasterLocator, prefix: str) -> None:
        self.prefix = prefix
        self.server = Server()
        self._place = place
        self._epoch = ""
        self._up = asyncio.Event()
        self._tried = asyncio.Event()  # to connect, for the first time
        self._gone_since = -math.inf  # by the event loop's clock; inf while it is there
        self._trouble = Unreachable("the store has not been reached yet")
        self._outbox = Outbox()
        self._waiting: deque[asyncio.Future[Reply] | None] = deque()
        self._on_new_epoch: list[Callable[[], None]] = []
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect, and wait a moment for it; a store that is away is no error."""
        self._task = asyncio.create_task(self._stay_connected(), name="redis-link")
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._tried.wait()

    async def aclose(self) -> None:
        await end(self._task)
        self._cut()
        self._is_closed = True
        self._trouble = Unreachable("the store's connection is closed", is_settled=True)
        self._up.set()  # nobody waits for it any more

    def on_new_epoch(self, call: Callable[[], None]) -> None:
        """Have something called whenever the store was found empty."""
        self._on_new_epoch.append(call)

    @property
    def epoch(self) -> str:
        if not self._epoch:
            raise StoreError(self.problem() or str(self._trouble))
        return self._epoch

    def problem(self) -> str:
        """Say why the store cannot be used now, and what to do; empty if it can."""
        if self._up.is_set() and not self._is_closed:
            return ""
        gone = asyncio.get_running_loop().time() - self._gone_since
        if gone < GRACE_SECONDS and not self._trouble.is_settled:
            return ""
        return str(self._trouble)

    # Commands

    async def ask(self, *commands: Command) -> Sequence[Reply]:
        """Send commands together and give their replies, soon or never.

        Raises `StoreError` within 2 seconds, at once while the store is known to be away.
        """
        try:
            async with asyncio.timeout(ASK_SECONDS):
                replies = await self._obtain(commands, is_patient=False)
        except TimeoutError:
            raise StoreError(f"{self._trouble_now()}; try again later") from None
        for reply in replies:
            _raise_if_refused(reply)
        return replies

    async def run(self, script: Script, *arguments: Argument) -> Reply:
        """Run a script, soon or never; as `ask`."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._run(script, arguments, is_patient=False)
        except TimeoutError:
            raise StoreError(f"{self._trouble_now()}; try again later") from None

    async def run_patiently(self, script: Script, *arguments: Argument) -> Reply:
        """Run a script, however long the store is away."""
        return await self._run(script, arguments, is_patient=True)

    def post(self, *commands: Command) -> None:
        """Send commands if that is possible now; nobody learns what becomes of them."""
        if self._up.is_set() and not self._is_closed:
            for command in commands:
                self._send(command, None)

    async def refresh_epoch(self) -> str:
        """Ask for the store's epoch now; it is another one after the store was emptied."""
        found = await self.run(EPOCH, secrets.token_hex(4))
        return self._take_epoch(found)

    async def _run(
        self, script: Script, arguments: Sequence[Argument], *, is_patient: bool
    ) -> Reply:
        rest = (0, self.prefix, *arguments)
        [reply] = await self._obtain([("EVALSHA", script.sha, *rest)], is_patient=is_patient)
        if isinstance(reply, NoScriptError):
            [reply] = await self._obtain([("EVAL", script.source, *rest)], is_patient=is_patient)
        _raise_if_refused(reply)
        return reply

    async def _obtain(self, commands: Sequence[Command], *, is_patient: bool) -> Sequence[Reply]:
        pauses = Pauses()
        while True:
            if not is_patient and (problem := self.problem()):
                raise StoreError(f"{problem}; try again later")
            await self._up.wait()
            if self._is_closed:
                raise StoreError(str(self._trouble))
            try:
                replies = await self._exchange(commands)
            except _Cut:
                continue
            if not (is_patient and any(map(_is_passing, replies))):
                return replies
            await pauses.pause()

    async def _exchange(self, commands: Sequence[Command]) -> Sequence[Reply]:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Reply]] = [loop.create_future() for _ in commands]
        for command, future in zip(commands, futures, strict=True):
            self._send(command, future)
        replies = [await future for future in futures]
        if any(isinstance(reply, _Cut) for reply in replies):
            raise _Cut
        return replies

    def _send(self, command: Command, future: asyncio.Future[Reply] | None) -> None:
        self._outbox.put(command)
        self._waiting.append(future)

    def _trouble_now(self) -> str:
        return self.problem() or "the store does not answer"

    # The connection

    async def _stay_connected(self) -> None:
        pauses = Pauses()
        while True:
            try:
                await self._converse(await self._place.connect())
            except Unreachable as error:
                self._trouble = error
            if self._up.is_set():
                pauses.begin_anew()
            self._cut()
            await pauses.pause()

    async def _converse(self, wire: Wire) -> None:
        """Serve the commands until the connection is lost. Raises `Unreachable`."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outbox.write(wire))
                group.create_task(self._read(wire))
                group.create_task(self._probe())
                group.create_task(self._place.follow())
        except ExceptionGroup as errors:
            error = errors.exceptions[0]
            if not isinstance(error, Unreachable | RedisError | OSError | _Cut):
                _log.error("the store's connection broke", exc_info=error)
            raise unreachable(error) from errors
        finally:
            await wire.disconnect(nowait=True)

    async def _read(self, wire: Wire) -> None:
        while True:
            try:
                reply = await wire.read_response(timeout=math.inf, disconnect_on_error=False)
            except ReadOnlyError:
                raise Unreachable("the store is a replica, which takes no writes") from None
            except ResponseError as error:
                reply = error
            if not self._waiting:  # it says why it will not hear us, before it hangs up
                raise unreachable(reply) if isinstance(reply, ResponseError) else _Cut
            future = self._waiting.popleft()
            if future is not None and not future.done():
                future.set_result(reply)

    async def _probe(self) -> None:
        """Greet the server, then watch over it; returns never, and raises `Unreachable`."""
        [found] = await self._asked_soon(("INFO",))
        self.server = read_info(found)
        await self._asked_soon(*(("SCRIPT", "LOAD", script.source) for script in ALL))
        while True:
            command: Command = ("EVAL", EPOCH.source, 0, self.prefix, secrets.token_hex(4))
            [epoch] = await self._asked_soon(command)
            self._take_epoch(epoch)
            self._up.set()
            self._tried.set()
            self._gone_since = math.inf
            await asyncio.sleep(PROBE_SECONDS)

    async def _asked_soon(self, *commands: Command) -> Sequence[Reply]:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                replies = await self._exchange(commands)
        except TimeoutError:
            self._gone_since = min(asked, self._gone_since)
            raise Unreachable("the store does not answer") from None
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise unreachable(reply) from reply
        return replies

    def _take_epoch(self, found: bytes) -> str:
        epoch = found.decode()
        if self._epoch and epoch != self._epoch:
            _log.error("the store was emptied: the runs that were in it are lost")
            self._epoch = epoch
            for call in self._on_new_epoch:
                call()
        self._epoch = epoch
        return epoch

    def _cut(self) -> None:
        self._tried.set()
        self._up.clear()
        self._gone_since = min(asyncio.get_running_loop().time(), self._gone_since)
        self._outbox.clear()
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if future is not None and not future.done():
                future.set_result(_Cut())


def _is_passing(reply: Reply) -> bool:
    """Whether a refusal is the state of the server, and will pass."""
    if isinstance(reply, ClusterDownError | MasterDownError | TryAgainError):
        return True
    refused = isinstance(reply, ResponseError)
    return refused and str(reply).startswith(("MISCONF", "NOREPLICAS", "BUSY "))


def _raise_if_refused(reply: Reply) -> None:
    if isinstance(reply, OutOfMemoryError):
        raise StoreFull("the store is full; try again later") from reply
    if isinstance(reply, ResponseError):
        raise StoreError(f"{unreachable(reply)}; try again later") from reply
