"""How a task of the store is ended."""

import asyncio


async def cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait for its end.

    One `Task.cancel` may not be enough: a task group of Python 3.11 forgets that it was cancelled
    if one of its tasks fails at the same moment.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
