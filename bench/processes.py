"""Starts what is measured, each in a process of its own, and reads what it uses from `/proc`."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
START_SECONDS = 20.0
_PAGE = os.sysconf("SC_PAGESIZE")
_under: list[str] = []


@dataclass(slots=True)
class Peer:
    """One agent that is measured: its name, its process and where it listens."""

    name: str
    process: "subprocess.Popen[str]"
    port: int
    ready_seconds: float = 0.0

    def cpu(self) -> float:
        """Give the seconds of CPU that all its threads have used up to now."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def memory(self) -> float:
        """Give its resident memory in MB."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * _PAGE / 1e6


@dataclass(slots=True)
class Backends:
    """The instant model and the instant tools, and how agents are told of them."""

    model: Peer
    tools: Peer
    python: str = sys.executable
    running: list[Peer] = field(default_factory=list)

    @property
    def model_url(self) -> str:
        return f"http://127.0.0.1:{self.model.port}/v1"

    @property
    def tools_url(self) -> str:
        return f"http://127.0.0.1:{self.tools.port}/mcp"


@contextlib.contextmanager
def backends() -> Iterator[Backends]:
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(started("model", [sys.executable, "-m", "bench.model"]))
        tools = stack.enter_context(started("tools", [sys.executable, "-m", "bench.tools"]))
        yield Backends(model, tools)


@contextlib.contextmanager
def floor(way: str, behind: Backends) -> Iterator[Peer]:
    """Start the floor; `way` is how it calls tools."""
    command = [sys.executable, "-m", "bench.floor", way, behind.model_url, behind.tools_url]
    with started(f"floor, {way}", command) as peer:
        yield peer


@contextlib.contextmanager
def diptych(
    behind: Backends, *, name: str = "diptych", tree: Path | None = None, **more: str
) -> Iterator[Peer]:
    """Serve an agent as a container would, and wait until `/ready` says so.

    `tree` is another source tree whose `app` is to be measured, instead of the installed one;
    `more` are further variables of its environment.
    """
    port = free_port()
    environ = {
        "AGENT_NAME": "bench",
        "AGENT_INSTRUCTIONS": "You are a careful assistant.",
        "MODEL_API_URL": behind.model_url,
        "MODEL_NAME": "instant-1",
        "MCP_SERVERS": "echo",
        "MCP_SERVER_ECHO_URL": behind.tools_url,
        "AGENTIC_LOOP_MAX_STEPS": "8",
        "PORT": str(port),
        "LOG_FORMAT": "json",
        **more,
    }
    if tree:
        environ["PYTHONPATH"] = str(tree / "app")
    command = [sys.executable, "-m", "diptych", "serve"]
    begun = time.perf_counter()
    with started(name, command, environ, says_port=False) as peer:
        peer.port = port
        await_ready(port)
        peer.ready_seconds = time.perf_counter() - begun
        yield peer


@contextlib.contextmanager
def started(
    name: str,
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    says_port: bool = True,
) -> Iterator[Peer]:
    """Start a process that says its port in its first line, and end it with the block."""
    process = subprocess.Popen(
        [*_under, *command],
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE if says_port else subprocess.DEVNULL,
        stderr=None if says_port else subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Peer(name, process, _said_port(process) if says_port else 0)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


@contextlib.contextmanager
def under(*command: str) -> Iterator[None]:
    """Start what is started in the block under another program, such as a profiler."""
    _under.extend(command)
    try:
        yield
    finally:
        del _under[:]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _said_port(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_SECONDS)[0]:
        raise TimeoutError("a server of the benchmark did not start")
    return int(process.stdout.readline())


def await_ready(port: int) -> None:
    ends_at = time.monotonic() + START_SECONDS * (40 if _under else 1)
    while time.monotonic() < ends_at:
        try:
            with urlopen(f"http://127.0.0.1:{port}/ready", timeout=1):
                return
        except OSError:  # not there yet, or not ready: 503
            time.sleep(0.01)
    raise TimeoutError("the agent did not become ready")
