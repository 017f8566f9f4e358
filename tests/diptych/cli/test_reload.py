"""`diptych serve --reload`: takes up a changed file, and goes on as it was if that is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.cli.commands.reload import free_port

SPEC = {"container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": '["{}", "Hi."]'}]}}
SECONDS = 90


def write(file: Path, description: str, **more: object) -> None:
    content = {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": "helper"},
        "spec": {**SPEC, "description": description, **more},
    }
    file.write_text(json.dumps(content))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    file, log, port = tmp_path / "agent.yaml", tmp_path / "log", free_port()
    write(file, "first")
    words = ["serve", str(file), "--reload", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "diptych", *words],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield process, f"http://127.0.0.1:{port}", log
    finally:
        process.kill()
        process.wait()


def until(holds: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def description(url: str) -> str | None:
    try:
        card = httpx.get(f"{url}/.well-known/agent-card.json", trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None
    return str(card.get("description"))


def test_what_is_valid_is_taken_up(
    served: tuple[subprocess.Popen[bytes], str, Path], tmp_path: Path
) -> None:
    process, url, log = served
    until(lambda: description(url) == "first")
    (tmp_path / "unrelated.py").write_text("def add(:")
    write(tmp_path / "agent.yaml", "second", nonsense=1)
    until(lambda: "the agent goes on as it was" in log.read_text())
    assert "spec.nonsense: is not a known field" in log.read_text()
    program = tmp_path / "tools.py"
    program.write_text("def add(:")
    tools = [{"name": "tools", "command": [sys.executable, str(program)]}]
    write(tmp_path / "agent.yaml", "third", tools=tools)
    until(lambda: f"{program}: line 1: invalid syntax" in log.read_text())
    assert description(url) == "first"
    program.write_text("")
    until(lambda: description(url) == "third")
    assert "unrelated.py" not in log.read_text()
    program = tmp_path / "shared.py"
    program.write_text("def shared(:")
    source = {"command": [sys.executable, str(program)]}
    server = {"metadata": {"name": "shared"}, "spec": {"source": source}}
    with (tmp_path / "agent.yaml").open("a") as file:
        kind = {"apiVersion": "diptych.dev/v1alpha1", "kind": "MCPServer"}
        file.write(f"\n---\n{json.dumps({**kind, **server})}\n")
    until(lambda: f"{program}: line 1: invalid syntax" in log.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert description(url) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux is asked for it")
def test_it_dies_with_the_process_that_watches(
    served: tuple[subprocess.Popen[bytes], str, Path],
) -> None:
    process, url, _ = served
    until(lambda: description(url) == "first")
    process.kill()
    until(lambda: description(url) is None)
