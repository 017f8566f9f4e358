"""The end of a command: exit codes, signals, and output that cannot be written."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")

COMPLETED = 0
FAILED = 1
USAGE = 2
MAX_STEPS = 3
INPUT_REQUIRED = 4
ABORTED = 130
READER_GONE = 141
"""As shells report SIGPIPE: nobody reads the output any more."""

EXIT_CODE_BY_STATUS: Mapping[str, int] = {
    "completed": COMPLETED,
    "failed": FAILED,
    "max_steps": MAX_STEPS,
    "aborted": ABORTED,
}
"""The exit code of a run, by the name of its terminal event (loop.md §2)."""

_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE, errno.ECONNRESET})


def run_interruptible(command: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine and return its exit code, or 130 if a signal cancelled it."""
    try:
        return asyncio.run(cancelled_by_signals(command))
    except asyncio.CancelledError:
        return ABORTED


async def cancelled_by_signals(command: Coroutine[Any, Any, _T]) -> _T:
    """Await a coroutine. The first signal cancels it, the second ends the process at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received, before = 0, signal.getsignal(signal.SIGINT)

    def on_signal() -> None:
        nonlocal received
        received += 1
        if received > 1 or task is None:
            os._exit(ABORTED)
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        return await command
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGINT, before)  # `diptych.__main__` has one


def open_closed_streams() -> None:
    """Open closed standard streams at the null device, before a socket takes their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - it lasts


@contextlib.contextmanager
def unwritable_output_is_an_end() -> Iterator[None]:
    """Exit if output cannot be written: quietly, as by SIGPIPE, if its reader has gone."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer makes an exit with 1 of it
            _exit_unwritable(end.__context__)
        raise
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _exit_unwritable(error)


def _exit_unwritable(error: OSError) -> NoReturn:
    is_gone = error.errno in (errno.EPIPE, errno.ECONNRESET)
    null = os.open(os.devnull, os.O_WRONLY)
    if not is_gone:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: cannot write: {error.strerror}\n")
            sys.stderr.flush()
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(
                null, stream.fileno()
            )  # Python writes what is buffered once more, and complains
    raise SystemExit(READER_GONE if is_gone else FAILED) from None
