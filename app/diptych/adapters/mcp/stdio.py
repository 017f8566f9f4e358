"""Runs an MCP server as a child and speaks with it over its stdin and stdout.

The SDK's own `stdio_client` takes up to six seconds to end a child that hangs, and does not say
when a child has died; this one takes one, and says so. What the child writes to stderr goes to the
log at level DEBUG, never to our own output.

Not here: when a child is started again (`session`).
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

from diptych.adapters.mcp.transport import MOST_BYTES_READ

logger = logging.getLogger(__name__)

GRACE_SECONDS = 0.5
"""How long a child may take to end when its input closes, and again when it is told to."""

CLOSED = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    OSError,
)

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio(
    command: Sequence[str], env: Mapping[str, str], died: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Start a command with a minimal environment and `env`, and end it and its children after.

    `died` is told in a few words when the child ends by itself. Raises `OSError` if it cannot be.
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
            tasks.start_soon(_read, process, inbox, died)
            tasks.start_soon(_write, process, outbox, died)
            tasks.start_soon(_log, process)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _read(
    process: Process, inbox: MemoryObjectSendStream[Incoming], died: Callable[[str], None]
) -> None:
    async with inbox:
        with suppress(*CLOSED, anyio.DelimiterNotFound):
            async for line in _lines(process.stdout):
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    logger.debug("a tool server's output has a line that is no JSON-RPC message")
                    continue
                await inbox.send(SessionMessage(message))
        died(await _death(process, "closed its output"))


async def _write(
    process: Process,
    outbox: MemoryObjectReceiveStream[SessionMessage],
    died: Callable[[str], None],
) -> None:
    try:
        async for sent in outbox:
            line = sent.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
            if process.stdin is not None:
                await process.stdin.send(line.encode())
    except CLOSED:
        died(await _death(process, "closed its input"))


async def _death(process: Process, seen: str) -> str:
    code = process.returncode if await _exited(process, 0.1) else None
    return seen if code is None else f"exited with code {code}"


async def _log(process: Process) -> None:
    with suppress(*CLOSED, anyio.DelimiterNotFound):
        async for line in _lines(process.stderr):
            logger.debug("%s", line[:1000].decode(errors="replace"))


async def _lines(stream: ByteReceiveStream | None) -> AsyncIterator[bytes]:
    if stream is None:
        return
    buffered = BufferedByteReceiveStream(stream)
    while True:
        yield await buffered.receive_until(b"\n", MOST_BYTES_READ)


async def _end(process: Process) -> None:
    """End the child as MCP says: close its input, wait, tell it to end, wait, kill."""
    if process.stdin is not None:
        with suppress(*CLOSED):
            await process.stdin.aclose()
    if not await _exited(process, GRACE_SECONDS):
        _signal(process, signal.SIGTERM)
        await _exited(process, GRACE_SECONDS)
    # Also when the child itself is gone: what it has started may not be.
    _signal(process, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    with anyio.move_on_after(GRACE_SECONDS):
        await process.aclose()


async def _exited(process: Process, seconds: float) -> bool:
    """Wait for the exit alone: `process.wait()` also waits for whoever inherited the pipes."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110 - there is nothing to wait for
            await anyio.sleep(0.01)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
