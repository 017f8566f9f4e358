"""The feed of a store that one process has: its subscribers are all in this process."""

import asyncio
from collections.abc import Callable, Sequence

from diptych.core.events import Signal
from diptych.ports import FeedItem, Gap, Notice

OnSignal = Callable[[str, str, Signal], None]


class LocalFeed:
    """Fulfils `ports.Feed`; the event log publishes records, the leases signals."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Callable[[FeedItem], None]]] = {}  # by run
        self._on_signal: list[OnSignal] = []

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        self.publish(run_id, [notice])

    def publish(self, run_id: str, items: Sequence[FeedItem]) -> None:
        """Put items of a run to its subscribers."""
        for put in tuple(self._subscribers.get(run_id, ())):
            for item in items:
                put(item)

    def report_gap(self, run_id: str) -> None:
        """Have subscribers of a run read its log again."""
        self.publish(run_id, [Gap()])

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        self._subscribers.setdefault(run_id, []).append(put)

        def unsubscribe() -> None:
            subscribers = self._subscribers.get(run_id, [])
            if put in subscribers:
                subscribers.remove(put)
            if not subscribers:
                self._subscribers.pop(run_id, None)

        return unsubscribe

    def on_signal(self, callback: OnSignal) -> None:
        self._on_signal.append(callback)

    def publish_signal(self, session_id: str, run_id: str, signal: Signal) -> None:
        """Call back, soon, with a signal that was sent."""
        for callback in self._on_signal:
            asyncio.get_running_loop().call_soon(callback, session_id, run_id, signal)

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        """Do nothing: there is no other process."""
