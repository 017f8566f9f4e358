"""A pod with little memory, those who want to bring it down, and how it fares.

The limit is a memory cgroup's where this process may make one; then the kernel kills a pod that
goes over it. Elsewhere the pod is told of a limit by MEMORY_LIMIT, and what it uses is measured.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.pods import SERVERS, PodProcess
from support.scene import tell

LIMIT = 512 * 2**20  # bytes
HEALTH_SECONDS = 1.0
_CGROUPS = Path("/sys/fs/cgroup")
_numbers = itertools.count()


@contextmanager
def memory_cgroup(limit: int = LIMIT) -> Iterator[Path | None]:
    """Make a memory cgroup, of version 2 or 1; None where this process may not."""
    folder, file = _CGROUPS / f"floods-{os.getpid()}-{next(_numbers)}", "memory.max"
    if not (_CGROUPS / "cgroup.controllers").exists():
        folder, file = _CGROUPS / "memory" / folder.name, "memory.limit_in_bytes"
    try:
        folder.mkdir()
        (folder / file).write_text(str(limit))
    except OSError as error:
        tell(f"NO CGROUP ({error}): the bound is asserted of what is measured, not enforced")
        with suppress(OSError):
            folder.rmdir()
        yield None
        return
    try:
        yield folder
    finally:
        for _ in range(100):
            with suppress(OSError):
                folder.rmdir()
                break


@contextmanager
def limited_pods(count: int = 1, limit: int = LIMIT, **environ: str) -> Iterator[list[PodProcess]]:
    """Have pods that share nothing but a store; they are not started."""
    with tempfile.TemporaryDirectory(prefix="floods-") as folder, _stack(count, limit) as cgroups:
        pods = []
        for n, cgroup in enumerate(cgroups, 1):
            given = {"AGENT_NAME": "flooded", "LOG_FORMAT": "json", **environ}
            given["CGROUP" if cgroup else "MEMORY_LIMIT"] = str(cgroup or limit)
            command = [str(SERVERS / "limited_pod.py")]
            pods.append(PodProcess(f"pod-{n}", Path(folder), given, command))
        try:
            yield pods
        except BaseException as error:
            for pod in pods:
                error.add_note(f"--- {pod.name} logged:\n{pod.tail()}")
            raise
        finally:
            for pod in pods:
                pod.end()


@contextmanager
def _stack(count: int, limit: int) -> Iterator[list[Path | None]]:
    if not count:
        yield []
        return
    with memory_cgroup(limit) as one, _stack(count - 1, limit) as others:
        yield [one, *others]


@dataclass(slots=True)
class Vitals:
    """How a pod fared; see `chaos/servers/vitals.py`."""

    asked: int = 0
    missing: int = 0
    slowest: float = 0.0
    peak: float = 0.0  # MB
    late: float = 0.0  # seconds by which the machine itself was late

    def check(self, pod: PodProcess, limit: int = LIMIT) -> None:
        """Hold what was seen against what is promised."""
        assert pod.is_running, "the pod was brought down"
        assert self.asked
        assert not self.missing, self
        assert self.slowest < HEALTH_SECONDS + 4 * self.late, self  # a request waits a few times
        assert self.peak < limit / 1e6, self


@asynccontextmanager
async def watched(pod: PodProcess, what: str) -> AsyncIterator[Vitals]:
    """Watch a pod while the block lasts; what was seen stands in the value after it."""
    command = [sys.executable, str(SERVERS / "vitals.py"), str(pod.port), str(pod.pid)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    await process.stdout.readline()
    seen, before = Vitals(), pod.memory
    try:
        yield seen
    finally:
        told, _ = await process.communicate(b"\n")
        for name, value in json.loads(told).items():
            setattr(seen, name, value)
        tell(f"{what}: {before:.0f} -> {seen.peak:.0f} MB, /health {seen.slowest:.2f} s at most,")
        tell(f"    {seen.missing} of {seen.asked} missing, {'up' if pod.is_running else 'DOWN'}")


@asynccontextmanager
async def silent_model() -> AsyncIterator[str]:
    """Listen as a model's server that takes every request and answers none; gives its URL."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while await reader.read(2**16):
                pass
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


class Peer:
    """One connection of somebody who means harm."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, pod: PodProcess) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", pod.port, limit=2**12))

    async def send(self, content: bytes) -> bool:
        """Send; false if the pod has closed the connection."""
        try:
            self.writer.write(content)
            async with asyncio.timeout(20):
                await self.writer.drain()
        except (OSError, TimeoutError):
            return False
        return not self.writer.is_closing()

    async def status(self, seconds: float = 5.0) -> int:
        """Read the status of an answer; 0 if there is none."""
        try:
            async with asyncio.timeout(seconds):
                line = await self.reader.readline()
        except (OSError, TimeoutError, ValueError):
            return 0
        return int(line[9:12] or 0)

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def peers(pod: PodProcess, count: int) -> AsyncIterator[Sequence[Peer]]:
    """Connect so many peers; at the end they hang up."""
    found: list[Peer] = []
    try:
        for start in range(0, count, 100):
            more = (Peer.connect(pod) for _ in range(min(100, count - start)))
            found += await asyncio.gather(*more)
        yield found
    finally:
        for each in found:
            each.close()


def post(path: str, body: bytes) -> bytes:
    """Write a request with a body."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
