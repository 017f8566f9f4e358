"""`diptych serve --reload`: serves in a child process, which is replaced when a file changes."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import typer

from diptych.core.errors import ConfigError
from diptych.manifest.environment import SHUTDOWN_GRACE
from diptych.manifest.loader import LocalOptions, load_agents
from diptych.mcp import launcher
from diptych.serve.adapters import check_mock_scripts, check_store_urls

_POLL_SECONDS = 0.3
_RELOAD_GRACE = "3"  # seconds for active runs, unless the environment says otherwise
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_with_reload(
    files: Sequence[Path], options: LocalOptions, arguments: Sequence[str]
) -> int:
    """Run `diptych ARGUMENTS`, and again whenever a file has changed and all are valid.

    The manifests are watched, and the files that the commands of their tools name. Returns the exit
    code of the last child. Raises `ConfigError` if the files are wrong from the beginning.
    """
    watched = _load(files, options)
    served = _versions(watched)
    _check_python(watched)
    stop = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    child = _start(arguments)
    try:
        while not stop.wait(_POLL_SECONDS) and child.poll() is None:
            now = _versions(watched)
            if now == served or stop.wait(_POLL_SECONDS) or _versions(watched) != now:
                continue  # an editor may still be writing
            changed = ", ".join(sorted({str(file) for file, _ in served.items() ^ now.items()}))
            served = now
            try:
                watched = _load(files, options)
                served = _versions(watched) | {f: now[f] for f in watched if f in now}
                _check_python(watched)
            except ConfigError as error:
                for problem in error.problems:
                    typer.echo(f"error: {problem}", err=True)
                typer.echo(f"{changed}: not taken up; the agent goes on as it was", err=True)
                continue
            typer.echo(f"{changed}: changed; starting again", err=True)
            _end(child)
            child = _start(arguments)
    finally:
        code = _end(child)
    return code


def free_port() -> int:
    """Find a port for all children to come: a new one each time would move the agent."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "diptych", *arguments]
    if sys.platform == "linux":  # so that it ends with this process, however that ends
        command = [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command]
    environ = {SHUTDOWN_GRACE: _RELOAD_GRACE, **os.environ}
    # A group of its own: Ctrl-C reaches it through this process, once.
    return subprocess.Popen(command, env=environ, process_group=0)  # noqa: S603


def _end(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.terminate()
    return child.wait()


def _load(files: Sequence[Path], options: LocalOptions) -> Sequence[Path]:
    """Load all files as the child will; return what to watch. Raises `ConfigError`."""
    loaded = load_agents(files, options)
    configs = loaded.resolve(["http://127.0.0.1:0"] * len(loaded.names))
    check_mock_scripts(configs)
    check_store_urls(configs)
    tools = (tool.command for manifest, _ in loaded.manifests for tool in manifest.spec.tools)
    servers = (each.spec.source.command for each, _ in loaded.targets.shared.servers.values())
    return [*files, *(Path(word) for command in (*tools, *servers) for word in command or ())]


def _check_python(watched: Sequence[Path]) -> None:
    """Refuse Python files that have a syntax error. Raises `ConfigError`."""
    problems = []
    for file in watched:
        if file.suffix != ".py" or not file.is_file():
            continue
        try:
            compile(file.read_bytes(), str(file), "exec")
        except SyntaxError as error:
            problems.append(f"{file}: line {error.lineno}: {error.msg}")
        except ValueError as error:
            problems.append(f"{file}: {error}")
    if problems:
        raise ConfigError(*problems)


def _versions(watched: Sequence[Path]) -> dict[Path, tuple[int, ...]]:
    """Return when each watched file was written, with its size; nothing for what is no file."""
    found: dict[Path, tuple[int, ...]] = {}
    for file in watched:
        try:
            status = file.stat()
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):
            found[file] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found
