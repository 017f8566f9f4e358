"""Reads the event stream of a run, and remembers how far it was read over several connections."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson

from diptych.cli.client.failures import RemoteError
from diptych.core.codec import Record, is_terminal
from diptych.net.sse import SseEvent
from diptych.ports import Item, Notice

_HANDED_OVER = "handed_over"  # the last notice of a pod that is leaving


class RunCursor:
    """The position in a run's events; `last_id` is the `Last-Event-ID` of the next connection.

    `was_handed_over` tells that the last event announced the end of its connection.
    """

    def __init__(self, after: int) -> None:
        self.last_id = str(after) if after else ""
        self.is_at_end = False
        self.was_handed_over = False
        self._seq = after

    def advance(self, events: Sequence[SseEvent]) -> Sequence[Item]:
        """Give the items of the events, without records that were read before.

        Raises `RemoteError` if one is no event of a run.
        """
        items = []
        for event_type, data, last_id in events:
            self.last_id = last_id
            item = _read_item(event_type, data)
            if isinstance(item, Record):
                if item.seq <= self._seq:
                    continue
                self._seq = item.seq
                self.is_at_end = is_terminal(item)
            elif item.type == "reset":
                self._go_back(item)
            self.was_handed_over = isinstance(item, Notice) and item.type == _HANDED_OVER
            items.append(item)
        return items

    def _go_back(self, reset: Notice) -> None:
        """Continue from an earlier `seq`: the store has lost the last records of the run."""
        last_seq = reset.fields.get("last_seq")
        if isinstance(last_seq, int):
            self._seq = last_seq
            self.last_id = str(last_seq)


def read_record(view: Any) -> Record:  # noqa: ANN401 - the agent's JSON
    """Read an event as `/v1/runs/{id}/events` and `/memory/events` give it."""
    return Record(
        view["run_id"],
        view["session_id"],
        view["seq"],
        view["event_type"],
        datetime.fromisoformat(view["timestamp"]).timestamp(),
        view["content"],
        view["metadata"],
    )


def _read_item(event_type: str, data: bytes) -> Item:
    try:
        view = orjson.loads(data)
        if "event_type" in view:
            return read_record(view)
        return Notice(view.pop("type", event_type), view)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError("what answers there sends no events of a run") from error
