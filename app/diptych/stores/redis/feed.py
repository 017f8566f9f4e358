"""The feed over Redis pub/sub: records and notices of runs owned by other processes.

It also carries signals to runs, and handed-over sessions. Messages are lost whenever the connection
is. Subscribers then get a gap, and read the log again; also when a run's owner changes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVarTuple

from diptych.core.errors import StoreError
from diptych.core.events import Signal
from diptych.ports import FeedItem, Gap, Notice
from diptych.stores.encoding import (
    decode_notice,
    decode_record,
    decode_signal,
    encode_notice,
    loads,
)
from diptych.stores.redis.channels import Channel
from diptych.stores.redis.client import StoreClient
from diptych.stores.redis.connection import RedisConnection
from diptych.stores.redis.settings import RedisSettings

SUBSCRIBE_TIMEOUT_SECONDS = 1.8
_NOTICE = b"notice"  # first line of a message with a notice; in others it names the owner
_logger = logging.getLogger(__name__)

ItemCallback = Callable[[FeedItem], None]
SignalCallback = Callable[[str, str, Signal], None]
About = TypeVarTuple("About")


class RunChannel(Channel):
    """The records and notices of one run; `callbacks` are its subscribers in this process."""

    def __init__(self, run_id: str) -> None:
        super().__init__(self._take)
        self.run_id = run_id
        self.callbacks: list[ItemCallback] = []
        self.was_confirmed = False
        self._token: str | None = None  # of the owner of the newest records

    def confirm(self) -> None:
        """Handle a confirmation; any but the first follows a gap."""
        super().confirm()
        if self.was_confirmed:
            self.put_all([Gap()])
        self.was_confirmed = True

    def _take(self, message: bytes) -> None:
        head, *lines = message.split(b"\n")
        try:
            items = self._decode(head, lines)
        except (ValueError, TypeError, KeyError):
            _logger.warning("ignored a message that this version cannot read")
            items = [Gap()]
        self.put_all(items)

    def put_all(self, items: list[FeedItem]) -> None:
        for put in tuple(self.callbacks):
            for item in items:
                if not _deliver(put, item):
                    _deliver(put, Gap())  # the subscriber reads the log instead

    def _decode(self, head: bytes, lines: list[bytes]) -> list[FeedItem]:
        if head == _NOTICE:
            return [decode_notice(line) for line in lines]
        session_id, token, *_ = loads(head)
        records: list[FeedItem] = [decode_record(line, self.run_id, session_id) for line in lines]
        has_new_owner = self._token not in {None, token}
        self._token = token
        return [Gap(), *records] if has_new_owner else records


class RedisFeed(StoreClient):
    """Implements `ports.Feed`."""

    def __init__(self, settings: RedisSettings, connection: RedisConnection) -> None:
        super().__init__(settings, connection)
        self._subscriptions = connection.server.channels
        self._channels: dict[str, RunChannel] = {}  # by name
        self._unsubscribing: set[asyncio.Task[None]] = set()
        self._control = Channel(self._take_control)
        self._control_name = f"{settings.prefix}:control"
        self._signal_callbacks: list[SignalCallback] = []
        self._hand_over_callbacks: list[Callable[[str], None]] = []
        connection.on_new_epoch(self._report_gap)

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        message = _NOTICE + b"\n" + encode_notice(notice)
        self._connection.send("PUBLISH", self._key("updates", run_id), message)

    async def subscribe(self, run_id: str, put: ItemCallback) -> Callable[[], None]:
        if reason := self._connection.unavailable_reason():
            raise StoreError(f"{reason}; try again later")
        name = self._key("updates", run_id)
        channel = self._channels.get(name)
        is_new = channel is None
        if channel is None:
            channel = self._channels[name] = RunChannel(run_id)
        channel.callbacks.append(put)
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_SECONDS):
                if is_new:
                    await self._subscriptions.add(name, channel)
                await channel.confirmed.wait()
        except BaseException as error:
            self._unsubscribe(name, put)
            if isinstance(error, TimeoutError):
                raise StoreError("the store does not answer; try again later") from None
            raise
        return lambda: self._unsubscribe(name, put)

    def on_signal(self, callback: SignalCallback) -> None:
        self._signal_callbacks.append(callback)

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        self._hand_over_callbacks.append(callback)

    async def start_feed(self) -> None:
        """Receive signals and hand-overs from now on."""
        await self._subscriptions.add(self._control_name, self._control)

    async def close_feed(self) -> None:
        """Receive nothing any more; others may see that this process has ended."""
        await self._subscriptions.remove(self._control_name, self._control)
        for name, channel in tuple(self._channels.items()):
            await self._subscriptions.remove(name, channel)

    def _take_control(self, message: bytes) -> None:
        try:
            match loads(message):
                case {"released": str(session_id)}:
                    for handed_over in tuple(self._hand_over_callbacks):
                        _deliver(handed_over, session_id)
                    return
                case content:
                    session_id, run_id, encoded = content
                    signal = decode_signal(encoded.encode())
        except (ValueError, TypeError, KeyError, AttributeError):
            _logger.warning("ignored a message that this version cannot read")
            return
        if signal is not None:
            for signal_received in tuple(self._signal_callbacks):
                _deliver(signal_received, session_id, run_id, signal)

    def _unsubscribe(self, name: str, put: ItemCallback) -> None:
        channel = self._channels.get(name)
        if channel and put in channel.callbacks:
            channel.callbacks.remove(put)
        if channel and not channel.callbacks:
            del self._channels[name]
            task = asyncio.create_task(self._subscriptions.remove(name, channel))
            self._unsubscribing.add(task)
            task.add_done_callback(self._unsubscribing.discard)

    def _report_gap(self) -> None:
        for channel in tuple(self._channels.values()):
            channel.put_all([Gap()])


def _deliver(callback: Callable[[*About], None], *about: *About) -> bool:
    """Call a callback; return False if it failed, so that others are still called."""
    try:
        callback(*about)
    except Exception:  # the callback's bug must not break the connection
        _logger.exception("a subscriber of the feed failed")
        return False
    return True
