"""The pub/sub connection. It reconnects by itself, and then says that messages may be missing."""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from enum import Enum

from redis.exceptions import RedisError

from diptych.stores.redis.locator import (
    MasterLocator,
    RawConnection,
    Unreachable,
    reconnect_backoff,
    unreachable,
)
from diptych.stores.redis.tasks import cancel
from diptych.stores.redis.write_buffer import WriteBuffer

PING_SECONDS = 1.0
PONG_TIMEOUT_SECONDS = 2.5  # since the last message, after which the connection counts as dead
_logger = logging.getLogger(__name__)


class ChannelState(Enum):
    """The stages of a channel's subscription; `Channel` changes it."""

    PENDING = "pending"  # for the first time
    CONFIRMED = "confirmed"  # from now on no message is missed
    INTERRUPTED = "interrupted"  # messages are missed, until it is confirmed again


class Channel(ABC):
    """A channel that this process listens to; `feed` has the kinds of them."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.state = ChannelState.PENDING
        self.confirmed = asyncio.Event()

    @abstractmethod
    def on_message(self, message: bytes) -> None:
        """Take a message that was published to the channel."""

    @abstractmethod
    def on_gap(self) -> None:
        """Learn that messages may have been missed."""

    def confirm(self) -> None:
        was_interrupted = self.state is ChannelState.INTERRUPTED
        self.state = ChannelState.CONFIRMED
        self.confirmed.set()
        if was_interrupted:
            self.on_gap()

    def interrupt(self) -> None:
        if self.state is ChannelState.CONFIRMED:
            self.state = ChannelState.INTERRUPTED
            self.confirmed.clear()


class PubSubConnection:
    """The connection, and the channels that it is subscribed to."""

    def __init__(self, locator: MasterLocator) -> None:
        self._locator = locator
        self._channels: dict[bytes, Channel] = {}
        self._unconfirmed: Counter[bytes] = Counter()  # SUBSCRIBE commands without a reply yet
        self._buffer = WriteBuffer()
        self._is_connected = False
        self._received_at = 0.0  # by the event loop's clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._stay_connected(), name="redis-pubsub")

    async def aclose(self) -> None:
        await cancel(self._task)

    def subscribe(self, channel: Channel) -> None:
        """Subscribe; `channel.confirmed` is set once no message can be missed any more."""
        self._channels[channel.name] = channel
        self._send_subscribe([channel.name])

    def unsubscribe(self, channel: Channel) -> None:
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            self._send("UNSUBSCRIBE", channel.name)

    def _send_subscribe(self, names: list[bytes]) -> None:
        if self._is_connected:
            self._unconfirmed.update(names)
            self._send("SUBSCRIBE", *names)

    def _send(self, *command: str | bytes) -> None:
        if self._is_connected:
            self._buffer.add(command)

    # The connection

    async def _stay_connected(self) -> None:
        backoff = reconnect_backoff()
        while True:
            with suppress(Unreachable):  # `MultiplexedConnection` finds the same, and reports it
                connection = await self._locator.connect()
                backoff.reset()
                await self._use_until_lost(connection)
            await asyncio.sleep(backoff.next_delay())

    async def _use_until_lost(self, connection: RawConnection) -> None:
        """Use a connection until it is lost. Raises `Unreachable`."""
        self._is_connected = True
        if self._channels:
            self._send_subscribe(list(self._channels))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._buffer.flush_forever(connection))
                group.create_task(self._read(connection))
                group.create_task(self._ping())
                group.create_task(self._locator.watch_master())
        except ExceptionGroup as errors:
            for error in errors.exceptions:
                if not isinstance(error, Unreachable | RedisError | OSError):
                    _logger.error("the feed's connection broke", exc_info=error)
            raise unreachable(errors.exceptions[0]) from errors
        finally:
            self._disconnected()
            await connection.disconnect(nowait=True)

    async def _read(self, connection: RawConnection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            reply = await connection.read_response(timeout=math.inf, disconnect_on_error=False)
            self._received_at = loop.time()
            match reply:
                case [b"message", name, message]:
                    if channel := self._channels.get(name):
                        channel.on_message(message)
                case [b"subscribe", name, _]:
                    self._confirm(name)

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        self._received_at = loop.time()
        while True:
            self._send("PING")
            await asyncio.sleep(PING_SECONDS)
            if loop.time() - self._received_at > PONG_TIMEOUT_SECONDS:
                raise Unreachable("the store does not answer")

    def _confirm(self, name: bytes) -> None:
        self._unconfirmed[name] -= 1
        channel = self._channels.get(name)
        if channel and self._unconfirmed[name] <= 0:  # else it was unsubscribed, maybe added again
            channel.confirm()

    def _disconnected(self) -> None:
        self._is_connected = False
        self._buffer.clear()
        self._unconfirmed.clear()
        for channel in self._channels.values():
            channel.interrupt()
