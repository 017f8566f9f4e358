"""What signals do to a command: the first cancels its coroutine, the second ends the process."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, NoReturn

from diptych.cli.exit_codes import ABORTED

_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

_LAST_LINES_SECONDS = 0.2


def run_interruptible(command: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine and give its exit code, or 130 if a signal cancelled it."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(_cancel_on_signal(command))
        except asyncio.CancelledError:
            return ABORTED


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Give uvloop's factory where uvloop is installed; None means asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.contextmanager
def interrupt_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C by a function while a block lasts.

    In other threads than the main one it has no effect: Python handles no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def exit_now() -> NoReturn:
    """End this process at once. Tool servers that it started see their stdin close.

    Lines of the log that wait for others are written before, unless nobody takes them.
    """
    writing = threading.Thread(target=logging.shutdown, daemon=True)
    writing.start()
    writing.join(_LAST_LINES_SECONDS)
    os._exit(ABORTED)


async def _cancel_on_signal(command: Coroutine[Any, Any, int]) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received = 0

    def on_signal() -> None:
        nonlocal received
        received += 1
        if received > 1 or task is None:
            exit_now()
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        return await command
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
