"""The events of a run as server-sent events: `/v1/runs/{id}/events`.

A record's frame has the record's seq as `id`, and the same bytes whenever and wherever it is
read. What is told live only has no `id`: notices, `reset`, and the two frames that may stand at
the end of a stream whose run goes on, `handed_over` and `error`.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from diptych.errors import RequestError, StoreError
from diptych.http.errors import request_error, run_error, store_problem
from diptych.http.sse import frame
from diptych.http.views import event_view, notice_view
from diptych.ports import Item
from diptych.record import Record
from diptych.runs import Runs

_log = logging.getLogger(__name__)


async def event_frames(runs: Runs, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """Give what happened after `after`, then what happens, as frames; those of a batch together."""
    try:
        async with aclosing(runs.follow(run_id, after)) as batches:
            async for batch in batches:
                yield b"".join(map(_frame, batch))
    except StoreError as error:
        _log.error("the store failed under a stream: %s", error)
        yield frame(run_error(*store_problem(error)), event="error")
    except RequestError as error:
        yield frame(request_error(error), event="error")


def _frame(item: Item) -> bytes:
    if isinstance(item, Record):
        return frame(event_view(item), event=item.event_type, seq=item.seq)
    return frame(notice_view(item), event=item.type)
