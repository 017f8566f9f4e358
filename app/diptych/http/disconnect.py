"""What a caller's hanging up does: nothing, unless the run was asked for with `cancel`.

The run's first record says so, whatever connection is the one that breaks. A run that somebody
else still follows here is not ended.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from diptych.errors import RequestError, StoreError
from diptych.loop.codec import Record
from diptych.runtime.service import RunService

REASON = "the client disconnected"
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


async def unless_hung_up(
    request: Request, runs: RunService, run_id: str, work: Coroutine[Any, Any, Result]
) -> Result:
    """Do the work of following a run; if the caller hangs up meanwhile, give it up.

    Raises `ClientDisconnect` then.
    """
    gone = asyncio.ensure_future(hung_up(request))
    answer = asyncio.ensure_future(work)
    try:
        await asyncio.wait([gone, answer], return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
    finally:
        gone.cancel()
        answer.cancel()
        await asyncio.wait([gone, answer])
    await leave(runs, run_id)
    raise ClientDisconnect


async def leave(runs: RunService, run_id: str) -> None:
    """Take note that a reader of a run has hung up: abort it if that was asked for."""
    if runs.has_subscribers(run_id):
        return
    try:
        if await _ends_with_its_readers(runs, run_id):
            await runs.cancel(run_id, REASON)
    except (RequestError, StoreError) as error:
        _log.warning("run %s could not be cancelled when its client had gone: %s", run_id, error)


async def _ends_with_its_readers(runs: RunService, run_id: str) -> bool:
    """Look at the first of a run's events, and at no more of them than come with it."""
    async with aclosing(runs.subscribe(run_id)) as batches:
        first, *_ = await anext(batches)
    return isinstance(first, Record) and first.metadata.get("on_disconnect") == "cancel"


async def hung_up(request: Request) -> None:
    """Wait until the caller has hung up; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
