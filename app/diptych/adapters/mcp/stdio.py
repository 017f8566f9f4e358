"""Runs an MCP server as a child process, and exchanges messages over its stdin and stdout.

The SDK's own `stdio_client` takes four seconds to end a child that hangs (this takes one), and does
not tell that or how a child exited. What the child writes to stderr goes to the log at level DEBUG,
never to our own stderr.

Not here: when a child is started again (`supervisor`).
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

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

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], env: Mapping[str, str], on_exit: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Start a command with a minimal environment and `env`; at the end, end it and its children.

    `on_exit` is called with the reason, in a few words, when the child exits or closes its pipes by
    itself. Raises `OSError` if the command cannot be started.
    """
    process = await anyio.open_process(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=get_default_environment() | dict(env),
        start_new_session=True,
    )
    inbox, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, outbox = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with inbox, incoming, outgoing, outbox, anyio.create_task_group() as tasks:
            tasks.start_soon(_receive, process, inbox, on_exit)
            tasks.start_soon(_send, process, outbox, on_exit)
            tasks.start_soon(_log_stderr, process)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _terminate(process)


async def _receive(
    process: Process, inbox: MemoryObjectSendStream[Incoming], on_exit: Callable[[str], None]
) -> None:
    async with inbox:
        with suppress(*PIPE_ERRORS, anyio.DelimiterNotFound):
            async for line in _lines(process.stdout):
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    logger.debug("a tool server wrote a line to stdout that is no JSON-RPC message")
                    continue
                await inbox.send(SessionMessage(message))
        on_exit(await _exit_reason(process, "closed its output"))


async def _send(
    process: Process,
    outbox: MemoryObjectReceiveStream[SessionMessage],
    on_exit: Callable[[str], None],
) -> None:
    try:
        async for item in outbox:
            line = item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            if process.stdin is not None:
                await process.stdin.send(line.encode())
    except PIPE_ERRORS:
        on_exit(await _exit_reason(process, "closed its input"))


async def _exit_reason(process: Process, otherwise: str) -> str:
    code = process.returncode if await _exited(process, 0.1) else None
    return otherwise if code is None else f"exited with code {code}"


async def _log_stderr(process: Process) -> None:
    with suppress(*PIPE_ERRORS, anyio.DelimiterNotFound):
        async for line in _lines(process.stderr):
            logger.debug("%s", line[:1000].decode(errors="replace"))


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
