"""Runs a command's asynchronous work so that Ctrl-C ends it cleanly, and twice at once.

Not here: what ends when the work is cancelled (whoever does the work).
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

ABORTED = 130  # the exit code of what a person or a signal has ended
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


def run_to_exit_code(work: Coroutine[Any, Any, int]) -> int:
    """Do the work and give its exit code, or 130 when a signal ended it before it had one."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(_interruptible(work))
        except asyncio.CancelledError:
            return ABORTED


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Give uvloop's, where it is installed; None means Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def end_now() -> NoReturn:
    """End this process at once. Tool servers that it started see their input close."""
    os._exit(ABORTED)


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    heard = 0

    def interrupt() -> None:
        nonlocal heard
        heard += 1
        if heard > 1 or task is None:
            end_now()
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await work
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
