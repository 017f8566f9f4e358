"""What one request makes the agent's process execute: instructions, not time; timers are left out.

    python -m bench instructions

It needs valgrind. The agent runs under callgrind, some 50 times slower than otherwise, and counts
only while it is asked for S1. An agent with something is beside the one without. An instruction is
not a time: one that misses a cache takes a hundred times as long. What waits is not seen at all.
"""

import asyncio
import contextlib
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import access, client, guards, speed
from bench.processes import Backends, Peer, under
from bench.report import table

WARM_UP, ASKED, SLICES = 20, 10, 5
IDLE_SECONDS = 5.0  # in which timers are counted, to be left out: a slow request has more of them
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counted:
    """An agent under callgrind, whose dumps are in `folder`."""

    peer: Peer
    folder: Path

    def tell(self, *command: str) -> None:
        """Tell callgrind something; raises `CalledProcessError`."""
        said = ["vgdb", f"--pid={self.peer.process.pid}", "--wait=30", *command]
        subprocess.run(said, check=True, capture_output=True)

    def dumped(self) -> int:
        """Give the instructions since the last dump."""
        before = {*self.folder.iterdir()}
        self.tell("dump")
        (new,) = {*self.folder.iterdir()} - before
        found = _TOTALS.search(new.read_text())
        assert found
        return int(found[1])


async def measure(behind: Backends, effort: speed.Effort) -> str:
    """Count the instructions of each case, beside its other one, and give a table."""
    if not (shutil.which("valgrind") and shutil.which("vgdb")):
        return "valgrind is not installed"
    rows = []
    for scenario in effort.scenarios:
        question = client.question(*speed.SCENARIOS[scenario])
        rows += await _rows(behind, scenario, question)
    return table(["asked", "agent", "instructions, M", "spread", "beside", "ratio"], rows)


async def _rows(behind: Backends, scenario: str, question: bytes) -> list[list[str]]:
    found: dict[str, list[float]] = {}
    rows = []
    for name, beside in _BESIDE.items():
        found[name] = one = await _count(behind, name, question)
        median = statistics.median(one)
        ratio = median / statistics.median(found[beside]) if beside else 1.0
        spread = (max(one) - min(one)) / median
        rows.append(
            [scenario, name, f"{median / 1e6:.2f}", f"{spread:.3f}", beside, f"{ratio:.3f}"]
        )
    return rows


async def _count(behind: Backends, name: str, question: bytes) -> list[float]:
    """Give the instructions of a request, for each slice of requests."""
    with _served(behind, name) as counted:
        port = counted.peer.port
        if name == "token":
            question = access.TokenWay(counted.peer).request(question)
        await client.load(port, question, 1, WARM_UP)
        await asyncio.to_thread(counted.tell, "instrumentation", "on")
        await client.load(port, question, 1, 2)  # its idle connections are as they will be
        await asyncio.to_thread(counted.dumped)
        await asyncio.sleep(IDLE_SECONDS)
        idle = await asyncio.to_thread(counted.dumped) / IDLE_SECONDS
        found = []
        for _ in range(SLICES):
            took = (await client.load(port, question, 1, ASKED)).seconds
            found.append((await asyncio.to_thread(counted.dumped) - idle * took) / ASKED)
        return found


_BESIDE: Mapping[str, str] = {
    "plain": "",
    "budgets": "plain",
    "50 rules, one about the tool": "plain",
    "50 rules, all about the tool": "plain",
    "budgets, 50 rules, one about the tool": "plain",
    "budgets, 50 rules, all about the tool": "plain",
    "no governor": "",
    "open": "no governor",
    "token": "open",
}


@contextlib.contextmanager
def _served(behind: Backends, name: str) -> Iterator[Counted]:
    with tempfile.TemporaryDirectory() as written, contextlib.ExitStack() as stack:
        out = f"--callgrind-out-file={written}/out"
        stack.enter_context(
            under("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", out)
        )
        match name:
            case "open":
                agent = access.served(behind, "--open")
            case "token":
                agent = access.served(behind)
            case "no governor":
                agent = access.served(behind, "--open", module="bench.ungoverned")
            case _:
                agent = guards.agent(behind, name, guards.CASES.get(name, ""))
        yield Counted(stack.enter_context(agent), Path(written))
