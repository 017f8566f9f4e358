"""What happens to runs that other processes own, over pub/sub.

Messages may be lost whenever the connection is; each watcher is told so, and reads the record
again. A watcher is told the same when a run's records begin to come from another owner.

Not here: the publishing of records (`append.lua` does it, in the step that adds them).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from diptych.adapters.redis.connection import Link
from diptych.adapters.redis.encoding import (
    loads,
    pack_notice,
    read_demand,
    read_notice,
    read_record,
)
from diptych.adapters.redis.settings import RedisSettings
from diptych.adapters.redis.store_part import Part
from diptych.adapters.redis.subscriber import Channel, Subscriber
from diptych.errors import StoreError
from diptych.loop.events import Signal
from diptych.ports import FeedItem, Notice

SUBSCRIBE_SECONDS = 1.8
TELL_SECONDS = 0.025  # what is told within this time goes out together
MOST_UNTOLD = 1_000
_NOTICES = b"notices"  # the head of a message that holds no records
_log = logging.getLogger(__name__)

Put = Callable[[FeedItem], None]
Asked = Callable[[str, str, Signal], None]


class FeedPart(Part):
    """Fulfils `ports.Feed`."""

    def __init__(self, settings: RedisSettings, link: Link, subscriber: Subscriber) -> None:
        super().__init__(settings, link)
        self._subscriber = subscriber
        self._watches: dict[str, _Watch] = {}
        self._asked: list[Asked] = []
        self._on_released: list[Callable[[str], None]] = []
        self._untold: deque[tuple[str, bytes]] = deque(maxlen=MOST_UNTOLD)
        self._has_untold = asyncio.Event()
        control = f"{settings.prefix}:control".encode()
        subscriber.add(Channel(control, self._hear_control, _pass))
        link.on_new_epoch(self._miss_all)

    def publish(self, run_id: str, notice: Notice) -> None:
        self._untold.append((run_id, pack_notice(notice)))
        self._has_untold.set()

    async def subscribe(self, run_id: str, put: Put) -> Callable[[], None]:
        if problem := self._link.problem():
            raise StoreError(f"{problem}; try again later")
        watch = self._watches.get(run_id)
        if watch is None:
            watch = self._watches[run_id] = _Watch(run_id, self._key("told", run_id))
            self._subscriber.add(watch.channel)
        watch.puts.append(put)
        try:
            async with asyncio.timeout(SUBSCRIBE_SECONDS):
                await watch.channel.confirmed.wait()
        except BaseException as error:
            self._end_watch(watch, put)
            if isinstance(error, TimeoutError):
                raise StoreError("the store does not answer; try again later") from None
            raise
        return lambda: self._end_watch(watch, put)

    def on_signal(self, asked: Asked) -> None:
        self._asked.append(asked)

    def on_session_released(self, callback: Callable[[str], None]) -> None:
        self._on_released.append(callback)

    async def tell_what_is_untold(self) -> None:
        """Publish notices, for ever: at most one batch each 25 ms."""
        while True:
            await self._has_untold.wait()
            self._has_untold.clear()
            by_run: dict[str, list[bytes]] = {}
            while self._untold:
                run_id, packed = self._untold.popleft()
                by_run.setdefault(run_id, [_NOTICES]).append(packed)
            self._link.post(
                *(
                    ("PUBLISH", self._key("told", run_id), b"\n".join(lines))
                    for run_id, lines in by_run.items()
                )
            )
            await asyncio.sleep(TELL_SECONDS)

    def _end_watch(self, watch: "_Watch", put: Put) -> None:
        if put in watch.puts:
            watch.puts.remove(put)
        if not watch.puts and self._watches.get(watch.run_id) is watch:
            del self._watches[watch.run_id]
            self._subscriber.drop(watch.channel)

    def _miss_all(self) -> None:
        for watch in tuple(self._watches.values()):
            watch.missed()

    def _hear_control(self, message: bytes) -> None:
        try:
            match loads(message):
                case {"released": str(session_id)}:
                    for released in tuple(self._on_released):
                        released(session_id)
                    return
                case found:
                    session_id, run_id, packed = found
            demand = read_demand(packed.encode())
        except (ValueError, TypeError, KeyError, AttributeError):
            _log.warning("passed over a message that this version cannot read")
            return
        if demand is not None:
            for asked in tuple(self._asked):
                asked(session_id, run_id, demand)


class _Watch:
    """Who watches a run here, and whose records came last."""

    def __init__(self, run_id: str, channel: str) -> None:
        self.run_id = run_id
        self.channel = Channel(channel.encode(), self.hear, self.missed)
        self.puts: list[Put] = []
        self._token: str | None = None

    def missed(self) -> None:
        self._put_all([None])

    def hear(self, message: bytes) -> None:
        head, *lines = message.split(b"\n")
        try:
            items = self._read(head, lines)
        except (ValueError, TypeError, KeyError):
            _log.warning("passed over a message that this version cannot read")
            items = [None]
        self._put_all(items)

    def _read(self, head: bytes, lines: list[bytes]) -> list[FeedItem]:
        if head == _NOTICES:
            return [read_notice(line) for line in lines]
        session_id, token, *_ = loads(head)
        records: list[FeedItem] = [read_record(line, self.run_id, session_id) for line in lines]
        has_changed = self._token not in {None, token}
        self._token = token
        return [None, *records] if has_changed else records

    def _put_all(self, items: list[FeedItem]) -> None:
        for put in tuple(self.puts):
            for item in items:
                put(item)


def _pass() -> None:
    """Nothing is done about missed messages: who asks something of a run leaves it there, too."""
