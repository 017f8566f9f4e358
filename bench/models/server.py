"""llama.cpp's server with a small model, as a process of its own on a free loopback port.

`tools/llm` finds it. The seed is fixed: the same request gives the same reply.
"""

import contextlib
import functools
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench.processes import ROOT, free_port

FINDER = ROOT / "tools" / "llm"
START_SECONDS = 120.0
START_ATTEMPTS = 3
REPLY_SECONDS = 300.0
# One request at a time, on one thread: no reply depends on what is asked beside it.
ALONE = ("-np", "1", "-c", "4096", "-t", "1", "-tb", "1")


class NotToBeHad(Exception):
    """There is no model server on this machine; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server on a port; `identity` says what it runs: its build, its model, its template."""

    port: int
    identity: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Send JSON; give the status and the JSON of the reply."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REPLY_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def reply(self, body: dict[str, Any], is_settled: Callable[[str], bool] | None = None) -> str:
        """Give the model's reply to a request; only up to where `is_settled`, if that says so."""
        text = ""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REPLY_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            sent = json.dumps({**body, "stream": True})
            connection.request("POST", "/v1/chat/completions", sent, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {response.read().decode()}")
            for line in response:
                text += _text_in(line)
                if is_settled and is_settled(text):
                    break
        finally:
            connection.close()  # the server stops there, too
        return text


def _text_in(line: bytes) -> str:
    """Give the text in a line of a streamed reply."""
    if not line.startswith(b"data: {"):
        return ""
    found = json.loads(line.removeprefix(b"data: "))
    if "error" in found:
        raise RuntimeError(f"in a stream: {found}")
    return "".join(choice["delta"].get("content") or "" for choice in found["choices"])


@functools.cache
def _told(command: str) -> str:
    told = subprocess.run(["sh", str(FINDER), command], capture_output=True, text=True, check=False)
    if told.returncode:
        raise NotToBeHad(told.stderr.strip())
    return told.stdout.strip()


def templates() -> list[Path]:
    """List the chat templates of published models. Raises `NotToBeHad`."""
    return sorted(Path(_told("templates")).glob("*.jinja"))


@contextlib.contextmanager
def model_servers(template: Path | None = None, count: int = 2) -> Iterator[list[ModelServer]]:
    """Start servers that each answer one request at a time. Raises `NotToBeHad`."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(model_server(*ALONE, template=template)) for _ in range(count)]


@contextlib.contextmanager
def model_server(*options: str, template: Path | None = None) -> Iterator[ModelServer]:
    """Start a server, with its model's own chat template or another. Raises `NotToBeHad`."""
    _told("which")
    more = [] if template is None else ["--chat-template-file", str(template)]
    process, port = _started([*more, *options])
    try:
        yield ModelServer(port, _identity(port))
    finally:
        _end(process)


def _identity(port: int) -> str:
    """Say what a server runs, in its own words and by the size of its model."""
    connection = HTTPConnection("127.0.0.1", port, timeout=REPLY_SECONDS)
    try:
        connection.request("GET", "/props")
        found = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    said = [found[name] for name in ("build_info", "model_path", "chat_template")]
    return json.dumps([*said, Path(found["model_path"]).stat().st_size])


def _started(options: Sequence[str]) -> "tuple[subprocess.Popen[bytes], int]":
    """Start a server, on another port if somebody else was quicker to take the first one."""
    for _ in range(START_ATTEMPTS):
        port = free_port()
        process = subprocess.Popen(
            ["sh", str(FINDER), "serve", str(port), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if _is_ready(process, port):
                return process, port
        except BaseException:
            _end(process)
            raise
        _end(process)
    raise RuntimeError(f"the model server did not start (exit code {process.returncode})")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_ready(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """Wait until a server answers; say whether it does."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return True
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    return False
