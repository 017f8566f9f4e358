"""Keeps a local port forwarded to a Service by `kubectl port-forward`.

kubectl's port-forward ends when its pod does; another one is then started on the same local port.
It runs in a session of its own, so that Ctrl-C ends the run before it ends the port-forward. A
shell holds it and reads from a pipe that closes with this process, so that it never outlives us.
"""

import asyncio
import contextlib
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from diptych.cli.cluster.errors import ClusterError, error_from
from diptych.core.errors import ConfigError
from diptych.net.backoff import Backoff

HOST = "127.0.0.1"
START_SECONDS = 30.0
OUTAGE_SECONDS = 45.0
"""How long a port-forward may be down; a pod that is replaced takes less."""
_POLL_SECONDS = 0.2
_FIRST_DELAY, _MAX_DELAY = 0.2, 3.0
_PROBE_SECONDS = 5.0
_EXIT_SECONDS = 3.0
_READY = "Forwarding from "
_BROKEN = ("error forwarding", "an error occurred forwarding", "lost connection")
_SHELL = """exec 3<&0
"$@" 3<&- & forward=$!
{ read -r _ <&3; kill "$forward"; } & watch=$!
wait "$forward"
kill "$watch"
"""
_PROBE = b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"

Command: TypeAlias = Callable[[str], Sequence[str]]
"""Makes the command line of a port-forward from its ports, `LOCAL:REMOTE`."""


@asynccontextmanager
async def port_forward(command: Command, remote_port: int) -> AsyncIterator["PortForward"]:
    """Keep a port forwarded while a block lasts.

    Raises `ClusterError` or `ConfigError` if the first port-forward fails.
    """
    if shutil.which("sh") is None:
        raise ConfigError("sh is not on PATH: an Agent of a cluster is reached by means of it")
    forward = PortForward(command, remote_port)
    supervisor = asyncio.create_task(forward.supervise())
    start = asyncio.create_task(forward.wait_started())
    try:
        await asyncio.wait(
            [supervisor, start], timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if supervisor.done():
            await supervisor
        if not start.done():
            raise ClusterError(f"kubectl port-forward did not begin in {START_SECONDS:.0f} s")
        yield forward
    finally:
        for task in (supervisor, start):
            task.cancel()
        await asyncio.wait([supervisor, start])


class PortForward:
    """A port-forward that is restarted when it ends; fulfils `client.remote.Tunnel`.

    `port` is the local port, 0 before the first success.
    """

    def __init__(self, command: Command, remote_port: int) -> None:
        self.port = 0
        self._command = command
        self._remote_port = remote_port
        self._stderr = ""
        self._started = asyncio.Event()

    async def wait_started(self) -> None:
        """Return once a port-forward has succeeded."""
        await self._started.wait()

    async def wait_open(self) -> None:
        """Return once a request gets through. Raises `ClusterError` after `OUTAGE_SECONDS`."""
        try:
            async with asyncio.timeout(OUTAGE_SECONDS):
                while not await self._is_open():  # noqa: ASYNC110 - the far end announces nothing
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise self._outage() from error

    async def supervise(self) -> None:
        """Run port-forwards one after another until this is cancelled.

        Raises kubectl's error if the first one fails.
        """
        backoff = Backoff(_FIRST_DELAY, _MAX_DELAY)
        while True:
            was_open = await self._run_once()
            if not self._started.is_set():
                raise error_from("kubectl port-forward", self._stderr)
            if was_open:
                backoff.reset()
            await asyncio.sleep(backoff.next_delay())

    async def _run_once(self) -> bool:
        """Run one port-forward until it ends; give whether it was open."""
        ports = f"{self.port or ''}:{self._remote_port}"
        command = ("sh", "-c", _SHELL, "diptych-forward", *self._command(ports))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        stderr_reader = asyncio.create_task(self._read_stderr(process))
        try:
            return await self._read_port(process)
        finally:
            await _stop(process, stderr_reader)

    async def _read_port(self, process: Process) -> bool:
        """Read kubectl's stdout to its end; give whether it named the port that it opened."""
        was_open = False
        while process.stdout and (line := await process.stdout.readline()):
            text = line.decode(errors="replace")
            if text.startswith(f"{_READY}{HOST}:"):
                was_open = True
                self.port = int(text.split(" -> ")[0].rpartition(":")[2])
                self._started.set()
        return was_open

    async def _read_stderr(self, process: Process) -> None:
        """Keep kubectl's errors; end it when it has lost its pod, as older versions do not."""
        lines: list[str] = []
        while process.stderr and (line := await process.stderr.readline()):
            lines.append(line.decode(errors="replace"))
            self._stderr = "".join(lines[-20:])
            if process.stdin and any(message in lines[-1] for message in _BROKEN):
                process.stdin.close()

    async def _is_open(self) -> bool:
        """Whether the agent answers a request through the port."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                reader, writer = await asyncio.open_connection(HOST, self.port)
                try:
                    writer.write(_PROBE)
                    return bool(await reader.read(1))
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except (OSError, TimeoutError):
            return False

    def _outage(self) -> ClusterError:
        has_reason = bool(self._stderr.strip())
        reason = str(error_from("kubectl", self._stderr)) if has_reason else "no pod answers"
        return ClusterError(f"nothing gets through to the agent any more: {reason}")


async def _stop(process: Process, stderr_reader: "asyncio.Task[None]") -> None:
    """Close the shell's stdin, which ends the port-forward, and wait for both."""
    if process.stdin:
        process.stdin.close()
    try:
        async with asyncio.timeout(_EXIT_SECONDS):
            await process.wait()
            await stderr_reader
    except TimeoutError:
        process.kill()
        await process.wait()
    finally:
        stderr_reader.cancel()
