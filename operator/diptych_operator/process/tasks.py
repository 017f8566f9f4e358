"""Waits for asyncio tasks and ends them reliably, on Python 3.11 and above."""

import asyncio
import signal
from collections.abc import Collection, Coroutine
from typing import Any, TypeAlias

STOP_SECONDS = 3.0
"""After which a task that does not end is cancelled again."""

_ATTEMPTS = 5
Tasks: TypeAlias = Collection["asyncio.Task[Any]"]


async def end_tasks(tasks: Tasks) -> Tasks:
    """Cancel tasks until they have ended; give those that have not.

    One cancellation can be lost: in Python 3.11 `asyncio.wait_for`, which kopf uses, swallows one
    that arrives together with its result.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(_ATTEMPTS):
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=STOP_SECONDS)
    return left


def errors_of(tasks: Tasks) -> list[BaseException]:
    """Give the exceptions of tasks that have failed."""
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    return [error for task in ended if (error := task.exception())]


async def finish_unless(stop: asyncio.Event, waiting: Coroutine[Any, Any, None]) -> bool:
    """Await a coroutine; cancel it and give False if `stop` is set before it ends."""
    task, stopping = asyncio.create_task(waiting), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        return False
    task.result()
    return True


def set_on_signals(stop: asyncio.Event) -> None:
    """Set an event on SIGINT and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
