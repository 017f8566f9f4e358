"""Standard streams that are full, closed or gone, under commands as processes of their own."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has /dev/full, runs a shell")

MANIFEST = {
    "apiVersion": "diptych.dev/v1alpha1",
    "kind": "Agent",
    "metadata": {"name": "helper"},
    "spec": {"container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": '["{}", "Hello!"]'}]}},
}


@pytest.fixture
def helper(tmp_path: Path) -> str:
    file = tmp_path / "helper.yaml"
    file.write_text(json.dumps(MANIFEST))
    return str(file)


def words_of(command: str, file: str) -> Sequence[str]:
    """Write a command with its file."""
    return [file if word == "FILE" else word for word in command.split()]


def ended(redirected: str, *words: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """Run a command under a shell's redirection; `streams` are those of `subprocess.run`."""
    if "input" not in streams:
        streams["stdin"] = subprocess.DEVNULL
    shell = ["bash", "-c", f'exec "$@" {redirected}', "bash"]
    return subprocess.run(
        [*shell, sys.executable, "-m", "diptych", *words],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        text=True,
        timeout=30,
        check=False,
    )


COMMANDS = ["run FILE Hi", "run FILE Hi --json", "check FILE", "check FILE --json", "--help"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("redirected", "why"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
    ids=["full", "closed"],
)
def test_output_that_cannot_be_written_is_one_line_and_an_exit_with_1(
    helper: str, command: str, redirected: str, why: str
) -> None:
    found = ended(redirected, *words_of(command, helper))
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == f"error: cannot write: {why}"
    assert "Traceback" not in found.stderr


@contextmanager
def pipe_without_reader() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_ends_it_as_sigpipe_does(helper: str, command: str) -> None:
    with pipe_without_reader() as gone:
        found = ended("", *words_of(command, helper), stdout=gone)
    assert found.returncode == 141
    assert "rror" not in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("command", ["run FILE Hi", "chat FILE"])
def test_so_does_a_reader_of_stderr(helper: str, command: str) -> None:
    with pipe_without_reader() as gone:
        found = ended("", *words_of(command, helper), input="Hi\n", stderr=gone)
    assert found.returncode == 141


def test_agents_are_served_even_where_nobody_can_be_told(helper: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    words = [sys.executable, "-m", "diptych", "serve", helper, "--port", str(port)]
    with pipe_without_reader() as gone:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=gone)
    try:
        until_it_answers(f"http://127.0.0.1:{port}/ready", process)
        process.terminate()
        assert process.wait(10) in (0, 141)  # its last lines may be lost
    finally:
        process.kill()
        process.wait()


def until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    pytest.fail(f"it ended with {process.returncode}")


@pytest.mark.parametrize("redirected", ["<&-", "2>&-", "<&- 2>&-", "2>/dev/full"])
def test_a_command_without_stdin_or_stderr_does_its_work(helper: str, redirected: str) -> None:
    found = ended(redirected, "run", helper, "Hi")
    assert (found.returncode, found.stdout) == (0, "Hello!\n")
    assert "Assertion" not in found.stderr


@pytest.mark.parametrize("redirected", ["", "2>&-", "2>/dev/full"])
def test_a_report_and_its_exit_code_need_no_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redirected: str
) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho '{\"items\": []}'\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = ended(redirected, "status")
    assert (found.returncode, found.stderr) == (1, "")
    assert "charts/diptych/README.md says how" in found.stdout


def test_a_terminal_that_takes_nothing_more_is_not_waited_for(helper: str) -> None:
    """Another program may have made it non-blocking; what it cannot take now is dropped."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b" " * 4096):
            pass
    try:
        found = ended("", "run", helper, "Hi", stderr=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert (found.returncode, found.stdout) == (0, "Hello!\n")


def test_what_is_wrong_is_an_exit_code_even_if_it_cannot_be_said(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("kind: Nothing")
    for redirected in ("2>/dev/full", "2>&-", "<&- >&- 2>&-"):
        assert ended(redirected, "check", str(file)).returncode == 2
