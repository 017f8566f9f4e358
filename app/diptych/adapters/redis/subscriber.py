"""One pub/sub connection, which comes back by itself and then says that messages may be missing.

Not here: what the messages mean (`feed`).
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from diptych.adapters.redis.locator import MasterLocator, Unreachable, Wire, unreachable
from diptych.adapters.redis.outbox import Outbox, Pauses, end

PING_SECONDS = 1.0
SILENCE_SECONDS = 2.5  # a ping is answered sooner, or the connection counts as dead


@dataclass(slots=True, eq=False)
class Channel:
    """What is done with a channel's messages; `missed` is called when some may be missing."""

    name: bytes
    hear: Callable[[bytes], None]
    missed: Callable[[], None]
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    has_gap: bool = False


class Subscriber:
    """The connection, and the channels that it is subscribed to."""

    def __init__(self, place: MasterLocator) -> None:
        self._place = place
        self._channels: dict[bytes, Channel] = {}
        self._due: Counter[bytes] = Counter()  # confirmations that are on their way
        self._outbox = Outbox()
        self._is_connected = False
        self._heard_at = 0.0  # by the event loop's clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._stay_connected(), name="redis-subscriber")

    async def aclose(self) -> None:
        await end(self._task)

    def add(self, channel: Channel) -> None:
        """Subscribe; `channel.confirmed` is set when nothing can be missed any more."""
        self._channels[channel.name] = channel
        self._subscribe([channel.name])

    def drop(self, channel: Channel) -> None:
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            self._send("UNSUBSCRIBE", channel.name)

    def _subscribe(self, names: list[bytes]) -> None:
        if self._is_connected:
            self._due.update(names)
            self._send("SUBSCRIBE", *names)

    def _send(self, *command: str | bytes) -> None:
        if self._is_connected:
            self._outbox.put(command)

    # The connection

    async def _stay_connected(self) -> None:
        pauses = Pauses()
        while True:
            with suppress(Unreachable):  # the link finds the same, and tells it
                wire = await self._place.connect()
                pauses.begin_anew()
                await self._converse(wire)
            await pauses.pause()

    async def _converse(self, wire: Wire) -> None:
        self._is_connected = True
        if self._channels:
            self._subscribe(list(self._channels))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outbox.write(wire))
                group.create_task(self._read(wire))
                group.create_task(self._ping())
                group.create_task(self._place.follow())
        except ExceptionGroup as errors:
            raise unreachable(errors.exceptions[0]) from errors
        finally:
            self._cut()
            await wire.disconnect(nowait=True)

    async def _read(self, wire: Wire) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await wire.read_response(timeout=math.inf, disconnect_on_error=False)
            self._heard_at = loop.time()
            match message:
                case [b"message", name, heard]:
                    if channel := self._channels.get(name):
                        channel.hear(heard)
                case [b"subscribe", name, _]:
                    self._confirm(name)

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while True:
            self._send("PING")
            await asyncio.sleep(PING_SECONDS)
            if loop.time() - self._heard_at > SILENCE_SECONDS:
                raise Unreachable("the store does not answer")

    def _confirm(self, name: bytes) -> None:
        self._due[name] -= 1
        channel = self._channels.get(name)
        if channel is None or self._due[name] > 0:
            return  # dropped meanwhile, and perhaps added again: a later confirmation counts
        channel.confirmed.set()
        if channel.has_gap:
            channel.has_gap = False
            channel.missed()

    def _cut(self) -> None:
        self._is_connected = False
        self._outbox.clear()
        self._due.clear()
        for channel in self._channels.values():
            channel.has_gap = channel.has_gap or channel.confirmed.is_set()
            channel.confirmed.clear()
