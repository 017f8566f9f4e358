"""A port of this machine that leads to a Service: `kubectl port-forward`, kept up.

The forward ends when its pod does, and then another one is made to the same local port. It lives
in a session of its own, so that Ctrl-C reaches the run through it first, and ends with us whatever
ends us: a shell holds it, and reads from a pipe that closes with this process.

Not here: what is asked through it (`reached`).
"""

import asyncio
import contextlib
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from diptych.cli.cluster.errors import ClusterError, refusal
from diptych.errors import ConfigError

HOST = "127.0.0.1"
START_SECONDS = 30.0
AWAY_SECONDS = 45.0
"""How long one waits for a forward that is away; a pod that is replaced takes less."""
_FIRST_DELAY, _MAX_DELAY = 0.2, 3.0
_PROBE_SECONDS = 5.0
_END_SECONDS = 3.0
_READY = "Forwarding from "
_BROKEN = ("error forwarding", "an error occurred forwarding", "lost connection")
_TETHER = """exec 3<&0
"$@" 3<&- & forward=$!
{ read -r _ <&3; kill "$forward"; } & watch=$!
wait "$forward"
kill "$watch"
"""
_PROBE = b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"


class Forward:
    """A forward that is being kept up; `port` is the local port, 0 before the first success."""

    def __init__(self, command: Callable[[str], Sequence[str]], remote_port: int) -> None:
        self.port = 0
        self._command = command
        self._remote_port = remote_port
        self._said = ""
        self._up = asyncio.Event()

    async def begun(self) -> None:
        """Wait for the first success."""
        await self._up.wait()

    async def open(self) -> None:
        """Wait until a request gets through. Raises `ClusterError` when none does for too long."""
        try:
            async with asyncio.timeout(AWAY_SECONDS):
                while not await self._gets_through():  # noqa: ASYNC110 - the far end tells no one
                    await asyncio.sleep(_FIRST_DELAY)
        except TimeoutError as error:
            raise self._gone() from error

    async def keep_up(self) -> None:
        """Forward, and again when that has ended, until this is cancelled.

        Raises what kubectl says if it has never come up.
        """
        delay = _FIRST_DELAY
        while True:
            was_up = await self._once()
            if not self._up.is_set():
                raise refusal("kubectl port-forward", self._said)
            delay = _FIRST_DELAY if was_up else min(delay * 2, _MAX_DELAY)
            await asyncio.sleep(delay)

    async def _once(self) -> bool:
        """Forward until that ends; say whether it had begun."""
        ports = f"{self.port or ''}:{self._remote_port}"
        command = ("sh", "-c", _TETHER, "diptych-forward", *self._command(ports))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        listening = asyncio.create_task(self._hear_troubles(process))
        try:
            return await self._hear_port(process)
        finally:
            await _ended(process, listening)

    async def _hear_port(self, process: Process) -> bool:
        was_up = False
        while process.stdout and (line := await process.stdout.readline()):
            words = line.decode(errors="replace")
            if words.startswith(f"{_READY}{HOST}:"):
                was_up = True
                self.port = int(words.split(" -> ")[0].rpartition(":")[2])
                self._up.set()
        return was_up

    async def _hear_troubles(self, process: Process) -> None:
        """Keep what kubectl says; one that has lost its pod is ended, as old ones stay for ever."""
        said: list[str] = []
        while process.stderr and (line := await process.stderr.readline()):
            said.append(line.decode(errors="replace"))
            self._said = "".join(said[-20:])
            if process.stdin and any(words in said[-1] for words in _BROKEN):
                process.stdin.close()

    async def _gets_through(self) -> bool:
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

    def _gone(self) -> ClusterError:
        why = str(refusal("kubectl", self._said)) if self._said.strip() else "no pod answers"
        return ClusterError(f"nothing gets through to the agent any more: {why}")


@asynccontextmanager
async def forwarded(
    command: Callable[[str], Sequence[str]], remote_port: int
) -> AsyncIterator[Forward]:
    """Keep a port forwarded for the time of a block; `command` makes the words for its ports.

    Raises `ClusterError` or `ConfigError` if it never comes up.
    """
    if shutil.which("sh") is None:
        raise ConfigError("sh is not on PATH: an Agent of a cluster is reached by means of it")
    forward = Forward(command, remote_port)
    keeping = asyncio.create_task(forward.keep_up())
    beginning = asyncio.create_task(forward.begun())
    try:
        await asyncio.wait(
            [keeping, beginning], timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if keeping.done():
            await keeping
        if not beginning.done():
            raise ClusterError(f"kubectl port-forward did not begin in {START_SECONDS:.0f} s")
        yield forward
    finally:
        for task in (keeping, beginning):
            task.cancel()
        await asyncio.wait([keeping, beginning])


async def _ended(process: Process, listening: "asyncio.Task[None]") -> None:
    """Let go of the tether, which ends the forward, and wait for both."""
    if process.stdin:
        process.stdin.close()
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
            await listening
    except TimeoutError:
        process.kill()
        await process.wait()
    finally:
        listening.cancel()
