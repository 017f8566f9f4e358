"""The events of a run as server-sent events: `/v1/runs/{id}/events`.

A record's frame has the record's seq as `id`, and the same bytes whenever and wherever it is
read. What is told live only has no `id`: notices, `reset`, and the two frames that may stand at
the end of a stream whose run goes on, `handed_over` and `error`.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from diptych.errors import RequestError, StoreError
from diptych.http.errors import request_error, run_error, store_problem
from diptych.http.sse import frame
from diptych.http.views import event_view, notice_view
from diptych.live import HANDED_OVER, is_last
from diptych.ports import Item, Notice
from diptych.record import TERMINAL, Record
from diptych.runs import Runs

_GOES_ON = "this process is leaving; the run goes on: follow it again with the last id"
_log = logging.getLogger(__name__)


async def event_frames(runs: Runs, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """Give what happened after `after`, then what happens, as frames; those of a batch together."""
    try:
        async with aclosing(runs.follow(run_id, after)) as batches:
            async for batch in batches:
                if told := b"".join(map(_frame, batch)):
                    yield told
                after = _position(batch, after)
                if any(map(is_last, batch)):  # a notice may come after it
                    return
        if (await runs.entry(run_id)).status not in TERMINAL:
            left = Notice(HANDED_OVER, {"run_id": run_id, "last_seq": after, "message": _GOES_ON})
            yield frame(notice_view(left), event=HANDED_OVER)
    except StoreError as error:
        _log.error("the store failed under a stream: %s", error)
        yield frame(run_error(*store_problem(error)), event="error")
    except RequestError as error:
        yield frame(request_error(error), event="error")


def _frame(item: Item) -> bytes:
    if isinstance(item, Record):
        return frame(event_view(item), event=item.event_type, seq=item.seq)
    if item.type == HANDED_OVER:
        return b""  # of another process; if it is this one, the stream's end says so
    return frame(notice_view(item), event=item.type)


def _position(batch: Sequence[Item], after: int) -> int:
    """Find where a reader is that has read a batch."""
    for item in batch:
        if isinstance(item, Record):
            after = item.seq
        elif item.type == "reset":
            after = cast("int", item.fields["last_seq"])
    return after
