"""A real `redis-server` on loopback, in a folder of its own, that can be hurt and healed.

It is ended by the test that started it.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_SECONDS = 15.0
ONCE = Retry(NoBackoff(), 0)


class RedisServer:
    """One process of `redis-server`; a restart keeps port and folder."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.options = options
        self._started: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, and wait until it answers."""
        executable = shutil.which("redis-server")
        if executable is None:
            pytest.fail("redis-server is missing, and these tests need it: apt-get install redis")
        command = [executable, *self.options, "--port", str(self.port)]
        if not self.options[:1] or self.options[0].startswith("--"):
            command += ["--bind", "127.0.0.1", "--save", ""]
        with (self.folder / "log").open("ab") as log:
            self._started = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        self._await_answer()

    def kill(self) -> None:
        """End it as a crash does: nothing is written any more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it hang: connections stay, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def copy_data(self) -> None:
        """Lay aside what it has saved up to now."""
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        shutil.copytree(self.folder / "appendonlydir", self.folder / "copy")

    def restore_data(self) -> None:
        """Take what was laid aside for what it has saved; it must not run."""
        self.lose_data()
        shutil.copytree(self.folder / "copy", self.folder / "appendonlydir", dirs_exist_ok=True)

    def lose_data(self) -> None:
        """Take away what it saved; it must not run."""
        for saved in self.folder.glob("appendonlydir/*"):
            saved.unlink()
        (self.folder / "dump.rdb").unlink(missing_ok=True)

    def ask(self, *command: Any, password: str | None = None) -> Any:
        """Send one command over a connection of its own."""
        with redis.Redis(port=self.port, protocol=2, password=password, retry=ONCE) as client:
            return client.execute_command(*command)

    def calls(self) -> dict[str, int]:
        """Say how often each command was sent since `CONFIG RESETSTAT`, scripts' own included."""
        found = self.ask("INFO", "commandstats")
        return {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in found.items()}

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Collect the commands of clients meanwhile, without health checks and those of scripts."""
        seen: list[str] = []
        with redis.Redis(port=self.port, protocol=2) as client, client.monitor() as monitor:
            yield seen
            self.ask("ECHO", "that was all")
            for command in monitor.listen():
                if command["command"].endswith("that was all"):
                    break
                name, *words = command["command"].split()
                is_check = name.upper() == "INFO" or "epoch" in words or words[1:] == ["1", "XX"]
                if command["client_type"] != "lua" and not is_check:
                    seen.append(name.upper())

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._started is not None, "the server was not started"
        return self._started

    def _end(self, by: signal.Signals) -> None:
        process, self._started = self._started, None
        if process is not None:
            process.send_signal(by)
            process.send_signal(signal.SIGCONT)
            process.wait(timeout=START_SECONDS)

    def _await_answer(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as it:
                it.sendall(b"PING\r\n")
                if it.recv(100)[:1] in {b"+", b"-"} and not self._is_loading():
                    return
            time.sleep(0.01)
        log = (self.folder / "log").read_text("utf-8")
        pytest.fail(f"redis-server did not start:\n{log[-2000:]}")

    def _is_loading(self) -> bool:
        try:
            self.ask("PING")
        except redis.BusyLoadingError:
            return True
        except redis.RedisError:  # a password is asked for, and the like: it is there
            return False
        return False


@contextmanager
def redis_server(*options: str, port: int | None = None) -> Iterator[RedisServer]:
    """Run a server; `options` are those of its command line, after which nothing is saved."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder), *options, port=port)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def free_port() -> int:
    """Find a port of loopback that nobody has now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
