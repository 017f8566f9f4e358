"""Programs that are run from outside: what they say, or why they failed."""

import os
import subprocess
from collections.abc import Mapping, Sequence


class CommandFailed(AssertionError):
    """A program ended with an error; the message holds all that it said."""

    def __init__(self, command: Sequence[str], result: subprocess.CompletedProcess[str]) -> None:
        self.stdout, self.stderr = result.stdout, result.stderr
        shown, said = " ".join(command)[:400], f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        super().__init__(f"`{shown}` exited with {result.returncode}\n{said}")


def output(
    *command: str,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float = 300,
) -> str:
    """Run a program to its end and give its stdout. Raises `CommandFailed`."""
    result = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
        check=False,
    )
    if result.returncode:
        raise CommandFailed(command, result)
    return result.stdout
