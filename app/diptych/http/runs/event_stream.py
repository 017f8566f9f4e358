"""The events of a run as server-sent events: `/v1/runs/{id}/events`.

A record's frame has the record's seq as `id`, and the same bytes for every reader at any time.
What is only live has no `id`: notices, `reset`, and the two frames that may end a stream whose run
goes on, `handed_over` and `error`.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from weakref import WeakValueDictionary

from diptych.core.codec import Record, record_chars
from diptych.core.errors import RequestError, StoreError
from diptych.http.errors import request_error_body, run_error_body, store_failure
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.views import event_view, notice_view
from diptych.net.sse import frame
from diptych.ports import Item

LARGE_RECORD = 2**16  # characters, from which a record's readers share one frame
_logger = logging.getLogger(__name__)


async def event_frames(runs: GuardedRuns, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """Give the frames of a run's events after a seq, first recorded ones, then live ones.

    The events of one batch come together.
    """
    try:
        async with aclosing(await runs.subscribe(run_id, after)) as batches:
            async for batch in batches:
                frames = _frames(batch)
                del batch  # for a slow reader no more is held than its frames
                for part in frames:
                    yield part.content if isinstance(part, _SharedFrame) else part
    except StoreError as error:
        _logger.error("the store failed under a stream: %s", error)
        yield frame(run_error_body(*store_failure(error)), event="error")
    except RequestError as error:
        yield frame(request_error_body(error), event="error")


class _SharedFrame:
    """A frame that several readers hold; bytes themselves cannot be referred to weakly."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content


_shared_frames: WeakValueDictionary[tuple[str, int, float], _SharedFrame] = WeakValueDictionary()
"""The frames of large records that somebody reads now; a slow reader holds one for long."""


def _frames(batch: Sequence[Item]) -> Sequence[bytes | _SharedFrame]:
    """Frame a batch; the frames between large records are joined."""
    parts: list[bytes | _SharedFrame] = []
    small: list[bytes] = []
    for item in batch:
        if isinstance(item, Record) and record_chars(item) >= LARGE_RECORD:
            parts += [b"".join(small), _shared_frame(item)]
            small = []
        else:
            small.append(_frame(item))
    return [*parts, b"".join(small)]


def _shared_frame(record: Record) -> _SharedFrame:
    key = (record.run_id, record.seq, record.timestamp)
    shared = _shared_frames.get(key)
    if shared is None:
        shared = _shared_frames[key] = _SharedFrame(_frame(record))
    return shared


def _frame(item: Item) -> bytes:
    if isinstance(item, Record):
        return frame(event_view(item), event=item.event_type, seq=item.seq)
    return frame(notice_view(item), event=item.type)
