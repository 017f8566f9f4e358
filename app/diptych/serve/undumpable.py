"""Keeps other processes of the same user out of this process's memory and environment.

Stdio servers run as the agent's own user. Without this they can read its environment and memory,
with every secret in them, below `/proc` or by ptrace.
"""

import ctypes
import sys

PR_SET_DUMPABLE = 4  # linux/prctl.h


def make_undumpable() -> None:
    """Make this process undumpable, on Linux; what it executes becomes dumpable again.

    It leaves no core dump then, and debuggers need CAP_SYS_PTRACE (prctl(2), proc(5)).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
