"""docs/start/tutorial.md, typed in an empty folder: each command shows what the page shows.

`…` on the page stands for any text, alone on a line for any lines. Ports and the ids of runs are
those of the moment.
"""

import contextlib
import os
import pty
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "start" / "tutorial.md"
BLOCK = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)
TYPED = re.compile(r"(?P<prompt>(?:why not: |€\? ))(?P<answer>y)$", re.MULTILINE)
ADDED = " (added at the end)"
SECONDS = 60  # for each command, on a busy machine


@dataclass
class Reader:
    """Somebody who types the page: a folder, an environment, and servers left running."""

    folder: Path
    environ: dict[str, str]
    port: int
    state: Path
    run_id: str = ""
    servers: list[int] = field(default_factory=list)

    def save(self, title: str, text: str) -> None:
        name, is_added, _ = title.partition(ADDED)
        file = self.folder / name
        file.write_text((file.read_text() if is_added else "") + text)

    def type(self, command: str, shown: str) -> None:
        """Type a command; one that looks what waits is typed until something does."""
        shown, end = self._of_now(shown), time.monotonic() + SECONDS
        seen = self._run(command, shown)
        while not pattern(shown).search(seen) and command.startswith("diptych approvals"):
            assert time.monotonic() < end, f"{command}\nshows\n{seen}\nand not\n{shown}"
            time.sleep(0.5)
            seen = self._run(command, shown)
        assert pattern(shown).search(seen), f"{command}\nshows\n{seen}\nand not\n{shown}"
        self.run_id = next(iter(re.findall(r"run-[\w-]+", seen)), self.run_id)

    def _run(self, command: str, shown: str) -> str:
        stays = command.startswith("diptych serve")
        if command.startswith(("diptych approve ", "diptych attach ")):
            command += (
                " --at http://127.0.0.1:8000"  # their default, whose port is another one here
            )
        script = (
            command if stays else f"{command}\ncode=$?; (pwd; env -0) >'{self.state}'; exit $code"
        )
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve("/bin/bash", ["bash", "-c", self._of_now(script)], self.environ)
        seen = self._follow(terminal, shown, stays=stays)
        if stays:
            self.servers.append(pid)
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code == 0, f"{command}: exit code {code}\n{seen}"
            folder, _, environ = self.state.read_text().partition("\n")
            self.folder = Path(folder)
            self.environ = dict(pair.split("=", 1) for pair in environ.split("\0") if pair)
        return seen

    def _follow(self, terminal: int, shown: str, *, stays: bool) -> str:
        """Read what a command shows; type the answers that the page shows, each at its prompt."""
        answers = [found["prompt"] for found in TYPED.finditer(shown)]
        output, end = b"", time.monotonic() + SECONDS
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 0.2)[0]:
                if stays and pattern(shown).search(plain(output)):
                    break
                continue
            try:
                read = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            output += read
            if answers and plain(output).endswith(f"{answers[0].rstrip()}\n"):
                del answers[0]
                os.write(terminal, b"y\n")
        return plain(output)

    def _of_now(self, text: str) -> str:
        text = text.replace("8001", str(self.port + 1)).replace("8000", str(self.port))
        return text.replace("run-…", self.run_id) if self.run_id else text

    def leave(self) -> None:
        for pid in self.servers:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


def plain(output: bytes) -> str:
    """Return an output without carriage returns, escapes and blanks at the ends of lines."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode(errors="replace"))
    lines = "\n".join(line.rstrip() for line in text.replace("\r", "").splitlines())
    return lines.rstrip() + "\n"


def pattern(shown: str) -> re.Pattern[str]:
    lines = []
    for line in shown.rstrip("\n").splitlines():
        text = re.escape(line).replace("…", ".*")
        if re.match(r"● .* http:", line):
            text += "(?:  without .*)?"  # a busy machine starts the tool server after the agent
        lines.append(r"(?:.*\n)*?" if line == "…" else text + r"\n")
    return re.compile(r"\A" + "".join(lines) + r"\n*\Z")


def two_free_ports() -> int:
    """Return a port that is free, as the next one is."""
    while True:
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            other.bind(("127.0.0.1", port + 1))
            return port


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    folder, port = tmp_path / "empty", two_free_ports()
    folder.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {
        "PATH": path,
        "HOME": str(tmp_path),
        "PORT": str(port),
        "COLUMNS": "120",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }
    somebody = Reader(folder, environ, port, tmp_path / "state")
    yield somebody
    somebody.leave()


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block with what it shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_tutorial_works_as_typed(reader: Reader):
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert len(blocks) > 15
    for block in blocks:
        if block["title"]:
            reader.save(block["title"], block["text"])
        elif block["kind"] == "console":
            for command, shown in commands(block["text"]):
                reader.type(command, shown)
