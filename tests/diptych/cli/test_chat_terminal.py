"""`diptych chat` at a terminal: what is typed while the agent works reaches its run."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROMPT = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
SLOW = {"content": "one two three four five six seven eight", "chunk_ms": 400}


class Terminal:
    """What a person sees and types."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process, self.fd, self.seen = process, fd, ""

    def until(self, text: str, seconds: float = 40) -> str:
        deadline = time.monotonic() + seconds
        os.set_blocking(self.fd, False)
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 65_536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.05)
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, line: str) -> None:
        os.write(self.fd, f"{line}\n".encode())


@contextmanager
def chat(folder: Path, *replies: object, **spec: object) -> Iterator[Terminal]:
    env = [{"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps(replies)}]
    manifest = {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": "helper"},
        "spec": {"container": {"env": env}, **spec},
    }
    file = folder / "helper.yaml"
    file.write_text(json.dumps(manifest))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "diptych", "chat", str(file)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_line_steers_and_later_waits_its_turn(tmp_path: Path) -> None:
    replies = ("{}", SLOW, "{}", "In French.", "{}", "In German.")
    with chat(tmp_path, *replies) as terminal:
        terminal.until(PROMPT)
        terminal.type("hello?")
        terminal.until("two")
        terminal.type("/later and in German")
        terminal.type("and in French")
        terminal.until("In French.")
        terminal.until("In German.")
        terminal.until(PROMPT)
        terminal.type("once more")
        terminal.until("two")


def test_ctrl_c_cancels_the_run_and_a_second_one_leaves(tmp_path: Path) -> None:
    with chat(tmp_path, "{}", SLOW) as terminal:
        terminal.until(PROMPT)
        terminal.type("hello?")
        terminal.until("two")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("aborted")
        terminal.until(PROMPT)
        terminal.type("again?")
        terminal.until("two")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("aborted")
        terminal.until(PROMPT)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(20) == 130


def test_ctrl_c_at_the_prompt_drops_a_line_and_the_next_one_leaves(tmp_path: Path) -> None:
    with chat(tmp_path, "{}", "Hello.") as terminal:
        terminal.until(PROMPT)
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(PROMPT)
        terminal.type("hello?")
        terminal.until("Hello.")
        terminal.until(PROMPT)
        for _ in range(2):
            terminal.process.send_signal(signal.SIGINT)
            time.sleep(1)
        assert terminal.process.wait(20) == 130
