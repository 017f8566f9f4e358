"""The feed over Redis pub/sub: records and notices of runs that other processes own.

Signals to runs come by it too, and word of sessions that are handed over.

Messages are lost whenever the connection is. Subscribers are told of such a gap, and read the
record again. They are told the same when records begin to come from another owner.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVarTuple

from diptych.core.errors import StoreError
from diptych.core.events import Signal
from diptych.ports import FeedItem, Gap, Notice
from diptych.stores.redis.client import StoreClient
from diptych.stores.redis.connection import MultiplexedConnection
from diptych.stores.redis.encoding import (
    decode_notice,
    decode_record,
    decode_signal,
    encode_notice,
    loads,
)
from diptych.stores.redis.pubsub import Channel, PubSubConnection
from diptych.stores.redis.settings import RedisSettings

SUBSCRIBE_TIMEOUT_SECONDS = 1.8
PUBLISH_SECONDS = 0.025  # notices of this time are published together
MAX_UNPUBLISHED = 1_000  # notices; beyond that the oldest are dropped
_NOTICES = b"notices"  # the first line of a message that holds notices; else it names the owner
_logger = logging.getLogger(__name__)

ItemCallback = Callable[[FeedItem], None]
SignalCallback = Callable[[str, str, Signal], None]
About = TypeVarTuple("About")


class RedisFeed(StoreClient):
    """Fulfils `ports.Feed`."""

    def __init__(
        self, settings: RedisSettings, connection: MultiplexedConnection, pubsub: PubSubConnection
    ) -> None:
        super().__init__(settings, connection)
        self._pubsub = pubsub
        self._channels_by_run: dict[str, RunChannel] = {}
        self._signal_callbacks: list[SignalCallback] = []
        self._hand_over_callbacks: list[Callable[[str], None]] = []
        self._unpublished: deque[tuple[str, bytes]] = deque(maxlen=MAX_UNPUBLISHED)
        self._has_unpublished = asyncio.Event()
        name = f"{settings.prefix}:control".encode()
        control = _ControlChannel(name, self._signal_callbacks, self._hand_over_callbacks)
        pubsub.subscribe(control)
        connection.on_new_epoch(self._report_gap)

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        self._unpublished.append((run_id, encode_notice(notice)))
        self._has_unpublished.set()

    async def subscribe(self, run_id: str, put: ItemCallback) -> Callable[[], None]:
        if reason := self._connection.unavailable_reason():
            raise StoreError(f"{reason}; try again later")
        channel = self._channels_by_run.get(run_id)
        if channel is None:
            channel = RunChannel(run_id, self._key("told", run_id).encode())
            self._channels_by_run[run_id] = channel
            self._pubsub.subscribe(channel)
        channel.callbacks.append(put)
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_SECONDS):
                await channel.confirmed.wait()
        except BaseException as error:
            self._unsubscribe(channel, put)
            if isinstance(error, TimeoutError):
                raise StoreError("the store does not answer; try again later") from None
            raise
        return lambda: self._unsubscribe(channel, put)

    def on_signal(self, callback: SignalCallback) -> None:
        self._signal_callbacks.append(callback)

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        self._hand_over_callbacks.append(callback)

    async def publish_notices_forever(self) -> None:
        """Publish the notices: one message for each run every 25 ms."""
        while True:
            await self._has_unpublished.wait()
            self._has_unpublished.clear()
            by_run: dict[str, list[bytes]] = {}
            while self._unpublished:
                run_id, notice = self._unpublished.popleft()
                by_run.setdefault(run_id, [_NOTICES]).append(notice)
            self._connection.send(
                *(
                    ("PUBLISH", self._key("told", run_id), b"\n".join(lines))
                    for run_id, lines in by_run.items()
                )
            )
            await asyncio.sleep(PUBLISH_SECONDS)

    def _unsubscribe(self, channel: "RunChannel", put: ItemCallback) -> None:
        run_id = channel.run_id
        if put in channel.callbacks:
            channel.callbacks.remove(put)
        if not channel.callbacks and self._channels_by_run.get(run_id) is channel:
            del self._channels_by_run[run_id]
            self._pubsub.unsubscribe(channel)

    def _report_gap(self) -> None:
        for channel in tuple(self._channels_by_run.values()):
            channel.on_gap()


class _ControlChannel(Channel):
    """Where signals to runs come, and word of sessions that are handed over."""

    def __init__(
        self,
        name: bytes,
        signal_callbacks: Sequence[SignalCallback],
        hand_over_callbacks: Sequence[Callable[[str], None]],
    ) -> None:
        super().__init__(name)
        self._signal_callbacks = signal_callbacks
        self._hand_over_callbacks = hand_over_callbacks

    def on_gap(self) -> None:
        """Signals that were missed are not lost: they are stored with the run as well."""

    def on_message(self, message: bytes) -> None:
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


class RunChannel(Channel):
    """Where the records and notices of one run come; `callbacks` are its subscribers here."""

    def __init__(self, run_id: str, name: bytes) -> None:
        super().__init__(name)
        self.run_id = run_id
        self.callbacks: list[ItemCallback] = []
        self._token: str | None = None  # of the owner whose records came last

    def on_gap(self) -> None:
        self._put_all([Gap()])

    def on_message(self, message: bytes) -> None:
        head, *lines = message.split(b"\n")
        try:
            items = self._decode(head, lines)
        except (ValueError, TypeError, KeyError):
            _logger.warning("ignored a message that this version cannot read")
            items = [Gap()]
        self._put_all(items)

    def _decode(self, head: bytes, lines: list[bytes]) -> list[FeedItem]:
        if head == _NOTICES:
            return [decode_notice(line) for line in lines]
        session_id, token, *_ = loads(head)
        records: list[FeedItem] = [decode_record(line, self.run_id, session_id) for line in lines]
        has_new_owner = self._token not in {None, token}
        self._token = token
        return [Gap(), *records] if has_new_owner else records

    def _put_all(self, items: list[FeedItem]) -> None:
        for put in tuple(self.callbacks):
            for item in items:
                if not _deliver(put, item):
                    _deliver(put, Gap())  # what it has missed is on record


def _deliver(callback: Callable[[*About], None], *about: *About) -> bool:
    """Call back, and say whether that went well: an error of one keeps no other from hearing."""
    try:
        callback(*about)
    except Exception:  # of any kind: it is the callback's, and not the connection's
        _logger.exception("what came over the feed was not taken")
        return False
    return True
