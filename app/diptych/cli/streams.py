"""The standard streams of a command: those that are closed, and output that cannot be written."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

from diptych.cli.exit_codes import FAILED, READER_GONE

_UNWRITABLE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF),
        *(errno.EPIPE, errno.ECONNRESET, errno.EAGAIN),
    }
)
_READER_GONE = frozenset({errno.EPIPE, errno.ECONNRESET})
_STREAMS = (
    ("stdin", "r", os.O_RDONLY),
    ("stdout", "w", os.O_RDONLY),  # for which each write is an error: it was to be read
    ("stderr", "w", os.O_WRONLY),
)
"""The standard streams, in the order of their numbers, and how one that is closed is opened."""


def open_closed_streams() -> None:
    """Open each standard stream that is closed at the null device, before a socket takes its place.

    Stdin is empty then, what goes to stderr is dropped, and what goes to stdout is an error.
    """
    for fd, (name, mode, flags) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        _point_at_null(fd, flags)
        setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - it lasts


def drop_what_stderr_cannot_take() -> None:
    """Have what a full disk, a full terminal or a broken device does not take of stderr dropped.

    Progress that nobody can keep is no reason to fail: a command does its work, writes its answer
    to stdout and exits with what became of it, as where stderr is closed. A reader that has gone
    is still an error.
    """
    given = sys.stderr
    if not isinstance(given, io.TextIOWrapper) or given is not sys.__stderr__:
        return  # a test's
    given.flush()
    raw = _DroppingFile(given.fileno(), "wb", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), given.encoding, given.errors, line_buffering=True
    )


class _DroppingFile(io.FileIO):
    """A file that takes whatever is written to it, and drops what cannot be written."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            written = super().write(data)
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.errno in _READER_GONE:
                raise
            written = None
        return memoryview(data).nbytes if written is None else written  # None: it would block


@contextlib.contextmanager
def unwritable_output_is_an_end() -> Iterator[None]:
    """Exit where output cannot be written: quietly, as by SIGPIPE, if its reader has gone.

    Output that is still buffered at the end of the block is written then.
    """
    try:
        yield
    except SystemExit as end:
        cause: BaseException | None = end
        while isinstance(cause, SystemExit):
            cause = cause.__context__
        if isinstance(cause, BrokenPipeError):  # typer makes an exit with 1 of it
            _exit(cause)
        if error := _flush():
            _exit(error)
        raise
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _exit(error)


def _exit(error: OSError) -> NoReturn:
    _flush()
    if isinstance(error, BrokenPipeError):
        raise SystemExit(READER_GONE) from None
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: cannot write: {error.strerror}\n")
    _flush()
    raise SystemExit(FAILED) from None


def _flush() -> OSError | None:
    """Write what is buffered, or drop it: Python would try again, and complain. Gives the error."""
    failed: OSError | None = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            failed = error
            _point_at_null(stream.fileno(), os.O_WRONLY)
    return failed


def _point_at_null(fd: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    if null == fd:
        os.set_inheritable(fd, True)
    else:
        os.dup2(null, fd)
        os.close(null)
