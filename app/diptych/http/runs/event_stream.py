"""The events of a run as server-sent events: `/v1/runs/{id}/events`.

A record's frame has the record's seq as `id`, and the same bytes whenever and wherever it is
read. What is told live only has no `id`: notices, `reset`, and the two frames that may stand at
the end of a stream whose run goes on, `handed_over` and `error`.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from weakref import WeakValueDictionary

from diptych.errors import RequestError, StoreError
from diptych.http.errors import request_error, run_error, store_problem
from diptych.http.views import event_view, notice_view
from diptych.loop.codec import Record
from diptych.net.sse import frame
from diptych.ports import Item
from diptych.runtime.buffer import record_chars
from diptych.runtime.service import RunService

LARGE = 2**16  # characters of a record whose frame all its readers have in common
_log = logging.getLogger(__name__)


async def event_frames(runs: RunService, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """Give what happened after `after`, then what happens, as frames; those of a batch together."""
    try:
        async with aclosing(runs.subscribe(run_id, after)) as batches:
            async for batch in batches:
                frames = _frames(batch)
                del batch  # a slow reader is to hold no more than its frames
                for told in frames:
                    yield told.whole if isinstance(told, _Shared) else told
    except StoreError as error:
        _log.error("the store failed under a stream: %s", error)
        yield frame(run_error(*store_problem(error)), event="error")
    except RequestError as error:
        yield frame(request_error(error), event="error")


class _Shared:
    """A frame that its readers have in common."""

    __slots__ = ("__weakref__", "whole")

    def __init__(self, whole: bytes) -> None:
        self.whole = whole


_shared: WeakValueDictionary[tuple[str, int, float], _Shared] = WeakValueDictionary()
"""Frames of large records that are being read now: who is slow takes long for one."""


def _frames(batch: Sequence[Item]) -> Sequence[bytes | _Shared]:
    """Frame a batch; what lies between large records goes out together."""
    framed: list[bytes | _Shared] = []
    small: list[bytes] = []
    for item in batch:
        if isinstance(item, Record) and record_chars(item) >= LARGE:
            framed += [b"".join(small), _frame_of_large(item)]
            small = []
        else:
            small.append(_frame(item))
    return [*framed, b"".join(small)]


def _frame_of_large(record: Record) -> _Shared:
    key = (record.run_id, record.seq, record.timestamp)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = _Shared(_frame(record))
    return found


def _frame(item: Item) -> bytes:
    if isinstance(item, Record):
        return frame(event_view(item), event=item.event_type, seq=item.seq)
    return frame(notice_view(item), event=item.type)
