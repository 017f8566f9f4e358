"""Pods as an operating system has them: real `diptych serve` processes, which can be hurt.

Each listens on a port of loopback that it keeps over its lives.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from support.redis_server import free_port

START_SECONDS = 60.0  # of a cold process on a machine that has other work
END_SECONDS = 10.0
SERVE = ("-m", "diptych", "serve")
SERVERS = Path(__file__).parent.parent / "chaos" / "servers"
_PAGE = os.sysconf("SC_PAGESIZE")


class PodProcess:
    """One pod: the processes that are started, one after another, on its port."""

    def __init__(
        self, name: str, folder: Path, environ: Mapping[str, str], command: Sequence[str] = SERVE
    ) -> None:
        self.name = name
        self.port = free_port()
        self.log = folder / f"{name}.log"
        self._count = folder / f"{name}.tasks"  # see `tasks`
        self._command = [sys.executable, *command]
        self._environ = {**environ, "PORT": str(self.port), "COUNT_TASKS": str(self._count)}
        self._started: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._started is not None and self._started.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    # Its life

    def start(self) -> None:
        """Start it; `ready` waits for it."""
        assert not self.is_running, f"{self.name} is there already"
        environ = {**_without_settings(), **self._environ}
        with self.log.open("ab") as log:
            self._started = subprocess.Popen(
                self._command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until `/ready` says so."""
        async with asyncio.timeout(seconds):
            while await self.status("/ready") != 200:
                assert self.is_running, f"{self.name} has ended:\n{self.tail()}"
                await asyncio.sleep(0.05)

    async def status(self, path: str, seconds: float = 5.0) -> int:
        """Ask for a path, over a connection of its own; 0 if there is no answer."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.get(self.url + path) as reply,
            ):
                return reply.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(END_SECONDS)

    def terminate(self) -> None:
        """Ask it to end, as a platform does."""
        self._process.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        """Let it stand still, with all its connections."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def exited(self, seconds: float) -> int:
        """Wait for its end; gives its exit code."""
        async with asyncio.timeout(seconds):
            while (code := self._process.poll()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return code

    def end(self) -> None:
        """End it, whatever it does."""
        process, self._started = self._started, None
        if process is not None:
            process.kill()
            process.wait(END_SECONDS)

    # What it uses

    @property
    def memory(self) -> float:
        """Its resident memory in MB."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE / 1e6

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    async def tasks(self) -> int:
        """Give the number of its tasks; it must be a `chaos/servers/watched_pod.py`."""
        self._count.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(END_SECONDS):
            while not (self._count.exists() and self._count.read_text()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return int(self._count.read_text())

    def tail(self, size: int = 3000) -> str:
        """Give the end of what all its lives have logged."""
        return self.log.read_text("utf-8", "replace")[-size:] if self.log.exists() else ""

    def grep(self, text: str) -> list[str]:
        """Give the lines of its log that hold a text."""
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return [line for line in lines if text in line]

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._started is not None, f"{self.name} was not started"
        return self._started


@contextmanager
def pod_processes(
    redis_url: str, count: int = 2, command: Sequence[str] = SERVE, **environ: str
) -> Iterator[list[PodProcess]]:
    """Start pods of one agent on one store; `environ` says what the agent is.

    They are not waited for (see `PodProcess.ready`), and are ended with the block. A failure of
    the block shows what they have logged.
    """
    environ = {"AGENT_NAME": "durable", "LOG_FORMAT": "json", "REDIS_URL": redis_url} | environ
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        pods = [PodProcess(f"pod-{n + 1}", Path(folder), environ, command) for n in range(count)]
        try:
            for pod in pods:
                pod.start()
            yield pods
        except BaseException as error:
            for pod in pods:
                error.add_note(f"--- {pod.name} logged:\n{pod.tail()}")
            raise
        finally:
            for pod in pods:
                pod.end()


async def all_ready(pods: list[PodProcess]) -> None:
    async with asyncio.TaskGroup() as group:
        for pod in pods:
            group.create_task(pod.ready())


def now() -> float:
    """Give the time of the clock that all processes of a machine share."""
    return time.monotonic()


def _without_settings() -> dict[str, str]:
    """Give the environment without what would set up an agent."""
    ours = ("AGENT", "MODEL_", "MCP_", "PEER_", "REDIS_", "DEBUG_", "LOG_", "PORT", "PUBLIC_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
