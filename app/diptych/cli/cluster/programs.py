"""Finds kubectl on PATH, and runs it."""

import shutil
import subprocess
from collections.abc import Sequence

from diptych.cli.cluster.errors import ClusterError, error_from
from diptych.core.errors import ConfigError

_INSTALL_PAGE = "https://kubernetes.io/docs/tasks/tools/"
_TIMEOUT_SECONDS = 120.0  # of a program that only reads; kubectl retries within it


def find_program(name: str) -> str:
    """Give the path of a program. Raises `ConfigError`, which says where to get it."""
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"{name} is not on PATH, and this command works by it; install it: {_INSTALL_PAGE}"
        )
    return found


def run_program(command: Sequence[str]) -> str:
    """Run a program and give its stdout. Raises the error that its stderr means."""
    name = command[0].replace("\\", "/").rpartition("/")[2]
    try:
        result = subprocess.run(  # noqa: S603 - the person's own kubectl
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"the cluster cannot be reached: {name} got no answer in {_TIMEOUT_SECONDS:.0f} s"
        ) from error
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from error
    if result.returncode:
        raise error_from(name, result.stderr.decode(errors="replace"))
    return result.stdout.decode(errors="replace")
