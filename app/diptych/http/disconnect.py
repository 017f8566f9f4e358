"""What a caller's hanging up does: nothing, unless it asked for `on_disconnect: cancel`."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request

from diptych.ports import RunEntry
from diptych.runs import Runs

REASON = "the client disconnected"
Result = TypeVar("Result")
_cancelling: set[asyncio.Task[RunEntry]] = set()  # the event loop itself holds tasks weakly


async def cancel_on_disconnect(
    request: Request, runs: Runs, entry: RunEntry, work: Coroutine[Any, Any, Result]
) -> Result:
    """Do the work; abort the run if the caller hangs up meanwhile."""
    gone = asyncio.ensure_future(hung_up(request))
    answer = asyncio.ensure_future(work)
    try:
        await asyncio.wait([gone, answer], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await runs.cancel(entry.run_id, REASON)
        return await answer
    finally:
        gone.cancel()
        answer.cancel()


async def cancel_soon(
    frames: AsyncGenerator[bytes], runs: Runs, entry: RunEntry
) -> AsyncGenerator[bytes]:
    """Pass a stream on; abort its run if the stream is given up before its end."""
    ended = False
    try:
        async with aclosing(frames):
            async for told in frames:
                yield told
        ended = True
    finally:
        if not ended:
            task = asyncio.ensure_future(runs.cancel(entry.run_id, REASON))
            _cancelling.add(task)
            task.add_done_callback(_cancelling.discard)


async def hung_up(request: Request) -> None:
    """Wait until the caller has hung up; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
