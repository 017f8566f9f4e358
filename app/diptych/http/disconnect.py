"""What becomes of a run whose caller hangs up: it may be cancelled, if its request asked for that.

`on_disconnect: cancel` stands in a run's first record, where each connection that reads its events
finds it. A run that has another reader at this process goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from diptych.core.codec import Record
from diptych.core.errors import RequestError, StoreError
from diptych.http.guarded_runs import GuardedRuns

REASON = "the client disconnected"
Result = TypeVar("Result")
_logger = logging.getLogger(__name__)


async def disconnected(receive: Receive) -> None:
    """Wait until the caller hangs up. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def result_unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work; cancel it and raise `ClientDisconnect` if the caller hangs up meanwhile."""
    task, listener = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait([task, listener], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        listener.cancel()
        await asyncio.wait([task, listener])


async def result_for_caller(
    receive: Receive,
    work: Coroutine[Any, Any, Result],
    on_disconnect: Callable[[], Awaitable[None]] | None,
) -> Result:
    """Do the work; without `on_disconnect` it goes on when the caller hangs up.

    Raises `ClientDisconnect` when `on_disconnect` has been called.
    """
    if on_disconnect is None:
        return await work
    try:
        return await result_unless_disconnected(receive, work)
    except ClientDisconnect:
        await on_disconnect()
        raise


async def cancel_if_abandoned(runs: GuardedRuns, run_id: str) -> None:
    """Cancel a run whose reader hung up, if its request asked for that and no reader is left."""
    if runs.has_subscribers(run_id):
        return
    try:
        if await _cancels_on_disconnect(runs, run_id):
            await runs.cancel(run_id, REASON)
    except (RequestError, StoreError) as error:
        _logger.warning("run %s could not be cancelled when its client had gone: %s", run_id, error)


async def _cancels_on_disconnect(runs: GuardedRuns, run_id: str) -> bool:
    """Read the run's first record; no more than one batch is read for it."""
    async with aclosing(await runs.subscribe(run_id)) as batches:
        first, *_ = await anext(batches)
    return isinstance(first, Record) and first.metadata.get("on_disconnect") == "cancel"
