"""A program that becomes the command of a stdio server, and has the kernel kill it with its agent.

    python -I -S launcher.py AGENT_PID COMMAND [ARGUMENT …]

It runs by itself, and imports nothing of Diptych: a `preexec_fn` would run Python between fork and
exec in a process that has threads, which may deadlock there.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; it stays through exec
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as in a shell


def main(agent_pid: int, command: list[str]) -> int:
    """Become the command; the exit code says why if that fails."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent_pid:  # the agent died before the kernel was asked
        return NOT_EXECUTABLE
    try:
        os.execvp(command[0], command)  # noqa: S606 - the manifest's own command
    except FileNotFoundError:  # the program is there: this was looked up before
        sys.stderr.write(f"the interpreter that {command[0]} names is not there\n")
        return NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"{os.strerror(error.errno or 0)}\n")
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
