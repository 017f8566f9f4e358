"""The memory that this process may use: its cgroup's limit, else a share of the machine's."""

import os
from pathlib import Path

OWN = 192 * 2**20  # bytes that a process takes for itself, and what other servers send it
MACHINE_SHARE = 0.5  # of the machine's memory, where nobody set a limit
_ROOT = Path("/")
_LARGEST = 2**60  # what version 1 says for no limit is more


def room_for_requests(limit: int) -> int:
    """Return the part of the process's limit for requests, runs and replies."""
    return max(limit - OWN, limit // 4)


def memory_limit(root: Path = _ROOT) -> int:
    """Return this process's limit in bytes; `root` holds `/proc` and `/sys`."""
    limits = [size for file in _limit_files(root) if (size := _read(file)) is not None]
    if limits:
        return min(limits)
    return int(os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") * MACHINE_SHARE)


def _limit_files(root: Path) -> list[Path]:
    """Yield the limit files of this process's cgroup and all its parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # In a container the path may be one of the host, and only the top be there.
        files += [base.joinpath(*parts[:n], name) for n in range(len(parts) + 1)]
    return files


def _read(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < _LARGEST else None
