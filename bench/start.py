"""How long a pod takes until it is ready, and how much memory it then holds."""

import resource
import statistics
import subprocess
import sys
import time

from bench.processes import ROOT, Backends, diptych
from bench.report import table

TIMES = 5
SETTLE_SECONDS = 1.0
_IMPORTS = {
    "python, with nothing": "pass",
    "import diptych.cli (any command)": "import diptych.cli",
    "import diptych.Agent (the library)": "from diptych import Agent",
    "import all that a pod serves with": "import diptych.cli.commands.serve, diptych.serve.process",
}


def measure(behind: Backends) -> str:
    """Start everything some times, each in a new process; give two tables."""
    rows = [[what, *map(_seconds, _cost_of(code))] for what, code in _IMPORTS.items()]
    ready, used, idle = [], [], []
    for _ in range(TIMES):
        with diptych(behind) as peer:
            ready.append(peer.ready_seconds)
            used.append(peer.cpu())
            time.sleep(SETTLE_SECONDS)
            idle.append(peer.memory())
    rows.append(["`diptych serve` until `/ready` is 200", *map(_seconds, (ready, used))])
    memory = [["idle, one tool server connected", f"{statistics.median(idle):.1f}"]]
    cold = table(["a cold process", "seconds", "CPU seconds"], rows)
    return f"{cold}\n\n{table(['memory', 'MB'], memory)}"


def _cost_of(code: str) -> tuple[list[float], list[float]]:
    """Give the seconds that new processes take for some code, and those of CPU."""
    taken, used = [], []
    for _ in range(TIMES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        taken.append(time.perf_counter() - begun)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return taken, used


def _seconds(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}"
