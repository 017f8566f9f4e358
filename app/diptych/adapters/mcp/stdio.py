"""Runs an MCP server as a child process, and exchanges messages over its stdin and stdout.

The SDK's own `stdio_client` takes four seconds to end a child that hangs (this takes one), and does
not tell that or how a child exited. What the child writes to stderr goes to the log at level DEBUG,
never to our own stderr; its last lines are part of the reason why it exited.

Not here: what of stderr is shown (`stderr_tail`), and when a child is started again (`supervisor`).
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from diptych.adapters.mcp.stderr_tail import StderrTail
from diptych.adapters.mcp.transport import MAX_RESPONSE_BYTES

logger = logging.getLogger(__name__)

GRACE_PERIOD = 0.5
"""Seconds that a child may take to exit after its stdin is closed, and again after SIGTERM."""

PIPE_ERRORS = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    OSError,
)

EXIT_TIMEOUT = 0.1
"""Seconds until a child that closed a pipe has exited, and until its stderr is read to the end."""

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables that a command is given; `secrets` are those values that nobody may see."""

    variables: Mapping[str, str]
    secrets: tuple[str, ...] = ()


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], env: Environment, on_exit: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Start a command with a minimal environment and `env`; terminate it, and its children, after.

    `on_exit` is called with the reason, in a few words, when the child exits or closes its pipes by
    itself. Raises `OSError` if the command cannot be started.
    """
    process = await anyio.open_process(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=get_default_environment() | dict(env.variables),
        start_new_session=True,
    )
    child = _Child(process, StderrTail(env.secrets))
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


@dataclass(frozen=True, slots=True)
class _Child:
    process: Process
    stderr: StderrTail

    async def exit_reason(self, otherwise: str) -> str:
        """Say how it exited, and what it wrote last; `otherwise` if it has not exited."""
        code = self.process.returncode if await _exited(self.process, EXIT_TIMEOUT) else None
        if code is None:
            return otherwise
        last_lines = await self.stderr.last_lines(EXIT_TIMEOUT)
        return f"exited with code {code}" + (f": {last_lines}" if last_lines else "")


async def _receive(
    child: _Child, inbox: MemoryObjectSendStream[Incoming], on_exit: Callable[[str], None]
) -> None:
    async with inbox:
        with suppress(*PIPE_ERRORS, anyio.DelimiterNotFound):
            async for line in _lines(child.process.stdout):
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    logger.debug("a tool server wrote a line to stdout that is no JSON-RPC message")
                    continue
                await inbox.send(SessionMessage(message))
        on_exit(await child.exit_reason("closed its output"))


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
        yield await buffered.receive_until(b"\n", MAX_RESPONSE_BYTES)


async def _terminate(process: Process) -> None:
    """End the child as MCP says: close its stdin, wait, SIGTERM, wait, kill.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
    """
    if process.stdin is not None:
        with suppress(*PIPE_ERRORS):
            await process.stdin.aclose()
    if not await _exited(process, GRACE_PERIOD):
        _signal(process, signal.SIGTERM)
        await _exited(process, GRACE_PERIOD)
    # Even if the child has exited: its own children may not have.
    _signal(process, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    with anyio.move_on_after(GRACE_PERIOD):
        await process.aclose()


async def _exited(process: Process, seconds: float) -> bool:
    """Wait for the exit only: `process.wait()` also waits for the pipes, which others may hold."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.01)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
