"""Runs an MCP server as a child process, and exchanges messages over its stdin and stdout.

Unlike the SDK's `stdio_client`, it reports how a child exited, and ends a hanging child within one
second instead of four. The child's stderr is logged at level DEBUG, never passed to our own stderr;
its last lines are part of the exit reason.
"""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from diptych.mcp import launcher
from diptych.mcp.transport import CommandNotStarted
from diptych.net.received import MAX_ANSWER_BYTES, Received, TooMuchReceived
from diptych.net.redaction import SECRETS

logger = logging.getLogger(__name__)

GRACE_PERIOD = 0.5  # seconds to exit after stdin is closed, and again after SIGTERM
EXIT_TIMEOUT = 0.1  # seconds to exit after closing a pipe, and again to read the rest of stderr
MAX_LINES = 4  # of stderr in a reason
MAX_LINE_CHARS = 200  # of a line in a reason
MAX_LOGGED_CHARS = 1000  # of a line in the log
MAX_LINE_BYTES = 64 * 1024  # of a line of stderr; the rest of the line is dropped
_TERMINAL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

PIPE_ERRORS = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    OSError,
)

INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")
"""The only variables of our own environment passed to a command: programs need them to start."""

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], env: Mapping[str, str], on_exit: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Run a command with a minimal environment plus `env`; on exit, terminate it and its children.

    On Linux the kernel kills the command if this process dies first. `on_exit` is called with a
    short reason when the child exits or closes its pipes by itself. Raises `OSError` if the command
    cannot be started.
    """
    variables = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(env)
    process = await anyio.open_process(
        _killed_with_us(command, variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables,
        start_new_session=True,
    )
    child = _Child(process, _StderrTail())
    inbox, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, outbox = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with inbox, incoming, outgoing, outbox, anyio.create_task_group() as tasks:
            tasks.start_soon(_receive, child, inbox, on_exit)
            tasks.start_soon(_send, child, outbox, on_exit)
            if process.stderr is not None:
                tasks.start_soon(child.stderr.read, process.stderr)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _terminate(process)


def _killed_with_us(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the command, wrapped in the launcher on Linux. Raises `CommandNotStarted`."""
    program = command[0]
    if shutil.which(program, path=variables.get("PATH", os.defpath)) is None:
        if os.sep not in program:
            raise CommandNotStarted(f"no program {program} on PATH")
        exists = Path(program).exists()
        raise CommandNotStarted(
            f"{program} is not executable" if exists else f"no program {program}"
        )
    if sys.platform != "linux" or not sys.executable:
        return list(command)
    return [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command]


@dataclass(frozen=True, slots=True)
class _Child:
    process: Process
    stderr: "_StderrTail"

    async def exit_reason(self, otherwise: str) -> str:
        """Return the exit code and the last lines of stderr; `otherwise` if it has not exited."""
        code = self.process.returncode if await _exited(self.process, EXIT_TIMEOUT) else None
        if code is None:
            return otherwise
        last_lines = await self.stderr.last_lines(EXIT_TIMEOUT)
        return f"exited with code {code}" + (f": {last_lines}" if last_lines else "")


async def _receive(
    child: _Child, inbox: MemoryObjectSendStream[Incoming], on_exit: Callable[[str], None]
) -> None:
    reason = "closed its output"
    async with inbox:
        try:
            async for line in _lines(child.process.stdout):
                await forward(line, inbox)
        except PIPE_ERRORS:
            pass
        except anyio.DelimiterNotFound:
            reason = f"wrote more than {MAX_ANSWER_BYTES} bytes on one line"
        except TooMuchReceived as error:
            reason = error.reason
        on_exit(await child.exit_reason(reason))


async def forward(text: bytes, inbox: MemoryObjectSendStream[Incoming]) -> None:
    """Parse a message and put it in the inbox. Raises `TooMuchReceived`."""
    received = Received()
    try:
        received.add(text)
        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
        await inbox.send(SessionMessage(message))
    except ValueError:
        logger.debug("a tool server sent a line or an event that is not a JSON-RPC message")
    finally:
        received.release()


async def _send(
    child: _Child,
    outbox: MemoryObjectReceiveStream[SessionMessage],
    on_exit: Callable[[str], None],
) -> None:
    try:
        async for item in outbox:
            line = item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            if child.process.stdin is not None:
                await child.process.stdin.send(line.encode())
    except PIPE_ERRORS:
        on_exit(await child.exit_reason("closed its input"))


async def _lines(stream: ByteReceiveStream | None) -> AsyncIterator[bytes]:
    if stream is None:
        return
    buffered = BufferedByteReceiveStream(stream)
    while True:
        yield await buffered.receive_until(b"\n", MAX_ANSWER_BYTES)


async def _terminate(process: Process) -> None:
    """End the child as MCP prescribes: close its stdin, wait, SIGTERM, wait, SIGKILL.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
    """
    if process.stdin is not None:
        with suppress(*PIPE_ERRORS):
            await process.stdin.aclose()
    if not await _exited(process, GRACE_PERIOD):
        _signal(process, signal.SIGTERM)
        await _exited(process, GRACE_PERIOD)
    _signal(process, signal.SIGKILL)  # even if it has exited: its children may still run
    with anyio.move_on_after(GRACE_PERIOD):
        await process.aclose()


async def _exited(process: Process, seconds: float) -> bool:
    """Wait for the exit only: `process.wait()` also waits for pipes that children may hold open."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.01)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _StderrTail:
    """Logs each line of stderr, and keeps the last ones for the exit reason, redacted."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._is_closed = anyio.Event()

    async def read(self, stream: ByteReceiveStream) -> None:
        """Read until the child, and every process that inherited its stderr, has closed it."""
        partial = b""
        try:
            while True:
                *lines, partial = (partial + await stream.receive()).split(b"\n")
                for line in lines:
                    self._add(line)
                partial = partial[:MAX_LINE_BYTES]
        except PIPE_ERRORS:
            self._add(partial)
            self._is_closed.set()

    async def last_lines(self, seconds: float) -> str:
        """Wait for the end of stderr, for `seconds` at most; return its last lines, joined."""
        with anyio.move_on_after(seconds):
            await self._is_closed.wait()
        return " | ".join(self._lines)

    def _add(self, line: bytes) -> None:
        # Strip terminal sequences first: one may interrupt a secret.
        text = _TERMINAL_SEQUENCE.sub("", line.decode(errors="replace"))
        printable = "".join(c if c.isprintable() else " " for c in text)
        text = SECRETS.redact(" ".join(printable.split()))
        if text:
            logger.debug("%s", text[:MAX_LOGGED_CHARS])
            is_long = len(text) > MAX_LINE_CHARS
            self._lines.append(text[: MAX_LINE_CHARS - 1] + "…" if is_long else text)
