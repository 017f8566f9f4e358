"""Subscriptions to channels of Redis pub/sub, over one connection for all stores of a server."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from diptych.net.backoff import Backoff

if TYPE_CHECKING:
    from diptych.stores.redis.server import RedisServer

_logger = logging.getLogger(__name__)


class Channel:
    """A subscriber of one channel; `take` handles its messages.

    While it is `confirmed` no message is missed.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.take = take
        self.confirmed = asyncio.Event()

    def confirm(self) -> None:
        """Handle Redis' confirmation of a subscription."""
        self.confirmed.set()


class RedisChannels:
    """All subscriptions at one server; messages are lost whenever the connection is."""

    def __init__(self, server: "RedisServer") -> None:
        self._server = server
        self._pubsub: PubSub | None = None  # while it is connected
        self._channels: dict[str, Channel] = {}  # by name
        self._unconfirmed: Counter[str] = Counter()  # SUBSCRIBE commands without a reply yet

    async def add(self, name: str, channel: Channel) -> None:
        """Subscribe; if the connection is lost, the next one subscribes again."""
        self._channels[name] = channel
        await self._subscribe(name)

    async def remove(self, name: str, channel: Channel) -> None:
        """Unsubscribe, unless another channel of the name was added."""
        if self._channels.get(name) is not channel:
            return
        del self._channels[name]
        if self._pubsub:
            with suppress(RedisError, OSError):
                await self._pubsub.unsubscribe(name)

    async def receive_forever(self) -> None:
        """Receive messages; after a lost connection, reconnect and subscribe again."""
        backoff = Backoff(initial=0.05, maximum=1.0)
        while True:
            client = await self._server.client()
            pubsub = client.pubsub()
            try:
                await pubsub.connect()  # type: ignore[no-untyped-call] # theirs
                self._pubsub = pubsub
                await self._subscribe(*self._channels)
                backoff.reset()
                while True:
                    self._receive(await pubsub.get_message(timeout=None))
            except (RedisError, OSError):
                self._server.check_now()
            except Exception:
                _logger.exception("the feed's connection broke")
            finally:
                self._pubsub = None
                self._unconfirmed.clear()
                for channel in self._channels.values():
                    channel.confirmed.clear()
                await pubsub.aclose()  # type: ignore[no-untyped-call] # theirs
            await asyncio.sleep(backoff.next_delay())

    async def _subscribe(self, *names: str) -> None:
        if self._pubsub and names:
            self._unconfirmed.update(names)
            with suppress(RedisError, OSError):
                await self._pubsub.subscribe(*names)

    def _receive(self, message: dict[str, object] | None) -> None:
        match message:
            case {"type": "message", "channel": bytes(name), "data": bytes(data)}:
                if channel := self._channels.get(name.decode()):
                    channel.take(data)
            case {"type": "subscribe", "channel": bytes(name)}:
                self._unconfirmed[name.decode()] -= 1
                channel = self._channels.get(name.decode())
                # A pending confirmation means that it was unsubscribed and subscribed again.
                if channel and self._unconfirmed[name.decode()] <= 0:
                    channel.confirm()
