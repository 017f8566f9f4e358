"""Commands as processes of their own: signals, pipes, and what is left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import pytest

SLOW = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: slow}
spec:
  TOOLS
  container:
    env:
    - name: DEBUG_MOCK_RESPONSES
      value: |
        ["{}", {"chunk_ms": 50, "content": "WORDS"}]
""".replace("WORDS", "word " * 1000)
TOOLS = "tools: [{name: demo, command: [diptych, demo-tools]}]"


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def started(*words: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command with a PATH that does not name its own environment.

    Ctrl-C is not ignored by it, as it would be if these tests were a shell's background job.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "diptych", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.defpath, "HOME": os.environ.get("HOME", "/"), **environ},
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - it takes no lock
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def children(pid: int) -> Sequence[int]:
    """Give the processes that a process has started (Linux)."""
    tasks = Path(f"/proc/{pid}/task")
    return [
        int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()
    ]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def slow(tmp_path: Path) -> str:
    file = tmp_path / "slow.yaml"
    file.write_text(SLOW.replace("TOOLS", ""))
    return str(file)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_aborts_the_run_and_leaves_no_tool_server(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text(SLOW.replace("TOOLS", TOOLS))
    with started("run", str(file), "Hi", "--json") as process:
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            if '"text"' in line:
                break
        servers = children(process.pid)
        assert servers
        process.send_signal(signal.SIGINT)
        last = orjson.loads(process.stdout.readlines()[-1])
        assert process.wait(10) == 130
        assert last["event_type"] == "aborted"
        assert all(map(is_gone, servers))
        assert "Traceback" not in process.stderr.read()


INTERRUPTED_START = """
import os, signal, sysconfig

def get_path(name):
    os.kill(os.getpid(), signal.SIGINT)
    return ""

sysconfig.get_path = get_path  # the command line asks for it before any command is at work
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_a_signal_before_a_command_is_at_work_is_an_end(slow: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_START)
    with started("chat", slow, PYTHONPATH=str(tmp_path)) as process:
        assert process.wait(20) == 130
        assert process.stderr
        assert not process.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_while_a_tool_server_starts_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "late.yaml"
    file.write_text(SLOW.replace("TOOLS", TOOLS.replace("diptych, demo-tools", 'sleep, "60"')))
    with started("run", str(file), "Hi") as process:
        while not children(process.pid):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr
        assert not process.stderr.read()


def test_a_reader_that_goes_away_ends_it_quietly(slow: str) -> None:
    with started("run", slow, "Hi") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.read(5) == "word "
        process.stdout.close()
        assert process.wait(10) == 141
        assert "Traceback" not in process.stderr.read()


def redirected(shell: str, *words: str, **streams: int) -> subprocess.CompletedProcess[str]:
    """Run a command under a shell's redirection; `streams` are those of `subprocess.run`."""
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {shell}', "bash", sys.executable, "-m", "diptych", *words],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def quick(tmp_path: Path) -> str:
    file = tmp_path / "quick.yaml"
    file.write_text(SLOW.replace("word " * 1000, "Hello!").replace("TOOLS", ""))
    return str(file)


@pytest.mark.skipif(sys.platform != "linux", reason="has /dev/full, runs a shell")
@pytest.mark.parametrize("command", ["run FILE Hi", "check FILE"])
def test_output_that_nobody_takes_is_an_end(quick: str, command: str) -> None:
    words = [quick if word == "FILE" else word for word in command.split()]
    full = redirected(">/dev/full", *words)
    assert full.returncode == 1
    assert full.stderr.splitlines()[-1] == "error: cannot write: No space left on device"
    assert "Traceback" not in full.stderr
    reader, writer = os.pipe()
    os.close(reader)
    gone = redirected("", *words, stdout=writer)
    os.close(writer)
    assert gone.returncode == 141
    assert "rror" not in gone.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="runs a shell")
def test_a_command_without_stdin_or_stderr_does_its_work(quick: str) -> None:
    found = redirected("<&- 2>&-", "run", quick, "Hi")
    assert (found.returncode, found.stdout) == (0, "Hello!\n")


def test_serve_says_where_agents_are_and_ends_on_a_signal(slow: str) -> None:
    with started("serve", slow, "--port", "0", COLUMNS="200") as process:
        assert process.stderr
        said = ""
        while "Ctrl-C" not in said:
            said += process.stderr.readline()
        url = re.search(r"● slow  (http://127\.0\.0\.1:\d+)", said)
        assert url
        assert httpx.get(f"{url[1]}/health", trust_env=False).json()["agent"] == "slow"
        assert "DEBUG_MOCK_RESPONSES is on" in said
        assert "slow.sqlite, and outlive the process" in said
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_serve_logs_one_json_object_a_line(tmp_path: Path) -> None:
    bank = {"MCP_SERVERS": "bank", "MCP_SERVER_BANK_URL": "http://127.0.0.1:9/mcp"}
    environ = {"AGENT_NAME": "plain", "DEBUG_MOCK_RESPONSES": "x", "PORT": "0", **bank}
    words = ("serve", "--host", "0.0.0.0", "--open")
    environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "sesame:4318"}
    with started(*words, LOG_FORMAT="json", **environ) as process:
        assert process.stderr
        logged: list[dict[str, str]] = []
        while not any("DEBUG_MOCK_RESPONSES" in line["message"] for line in logged):
            logged.append(orjson.loads(process.stderr.readline()))
        process.send_signal(signal.SIGINT)
        logged += map(orjson.loads, process.stderr)
        assert process.wait(10) == 0
    assert any("plain listens at http://0.0.0.0:" in line["message"] for line in logged)
    assert any("without the tools of bank" in line["message"] for line in logged)
    assert {line["level"] for line in logged} == {"info", "warning"}
    [said] = [line["message"] for line in logged if "OTLP" in line["message"]]
    assert said.startswith("the endpoint of OTLP is no URL")
    assert "sesame" not in str(logged)


def test_run_sends_traces_of_a_file_and_says_what_of_them_cannot_be(quick: str) -> None:
    traced = {"OTEL_TRACES_EXPORTER": "console,otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with started("run", quick, "Hi", "--no-input", **traced) as process:
        told, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Hello!" in told
    assert '"name": "invoke_agent slow"' in told
    assert "OTEL_EXPORTER_OTLP_PROTOCOL: this version speaks http/protobuf" in said


def test_quick_commands_do_not_load_what_serves() -> None:
    code = (
        "import sys, diptych.cli, diptych.cli.commands.check, diptych.manifest.loader\n"
        "print({'fastapi', 'mcp', 'a2a', 'uvicorn', 'aiohttp', 'httpx'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
