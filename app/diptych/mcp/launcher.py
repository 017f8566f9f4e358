"""Executes the command of a stdio server so that the kernel kills it when its agent dies.

    python -I -S launcher.py AGENT_PID COMMAND [ARGUMENT …]

It is a program of its own, without imports from Diptych, because a `preexec_fn` may deadlock: it
would run Python between fork and exec in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives exec
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as in a shell


def main(agent_pid: int, command: list[str]) -> int:
    """Replace this process by the command; return an exit code if that fails."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent_pid:  # the agent died before `prctl` took effect
        return NOT_EXECUTABLE
    try:
        os.execvp(command[0], command)  # noqa: S606 - the manifest's own command
    except FileNotFoundError:  # the program itself exists: the caller has checked
        sys.stderr.write(f"the interpreter of {command[0]} does not exist\n")
        return NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"{os.strerror(error.errno or 0)}\n")
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
