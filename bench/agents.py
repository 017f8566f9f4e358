"""What many Agents cost the operator: time, writes, memory, and CPU while nothing happens.

The operator is a process of its own; the Kubernetes API is the emulated one of the tests, served
by this process over loopback. Each Agent has one pod, that answers `/ready` at an address of its
own, because the operator polls pods too.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from bench.processes import ROOT, Peer, free_port, started
from bench.report import table

sys.path.append(str(ROOT / "tests"))

from support.api_in_thread import ApiInThread
from support.reconciler_harness import Harness, served

from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, POD, PORT, SERVICE
from diptych_operator.resources.labels import child_labels

FEW, MANY = 100, 1000
ROUNDS = 3
IDLE_SECONDS = 60.0
POD_ADDRESS = "127.8.0.1"
MOST_SECONDS = 900.0
"""A busy machine may give a process a tenth of a core."""
SETTLED = {"Ready": "True", "Degraded": "False"}


def measure() -> str:
    """Serve 100 Agents and then 1,000, some times, from nothing; give a table."""
    few = [_together(FEW) for _ in range(ROUNDS)]
    many = [_together(MANY) for _ in range(ROUNDS - 1)]
    rows = [_row(f"{FEW} Agents at once", few)]
    with pods_that_answer(), ApiInThread() as api:
        with _operator(api) as operator:
            many.append(_made(api, operator, MANY))
            rows.append(_row(f"{MANY} Agents at once", many))
            rows.append(_ready(api, operator))
        with _operator(api) as operator:
            rows += [_restarted(api, operator), _idle(api, operator)]
    head = ["what", "seconds", "CPU seconds", "writes per Agent", "other requests per Agent", "MB"]
    return f"{table(head, rows)}\n\n{asyncio.run(_alone())}"


async def _alone() -> str:
    """Reconcile without watches and polls, in the API's own process: what each Agent costs.

    These are seconds of a processor, so that other work on the machine does not count. Raises
    `AssertionError` if an operator that starts anew writes anything.
    """
    rows = []
    for number in (FEW, MANY):
        async with served() as harness:
            for index in range(number):
                harness.api.put(AGENT, _agent(index))
            made = await _reconciled_alone(harness, number)
            harness.api.writes.clear()
            again = await _reconciled_alone(Harness(harness.api, harness.client), number)
            assert not harness.api.writes
        rows.append([f"{number} Agents", f"{made:.1f}", f"{again:.1f}"])
    return table(["CPU ms per Agent, with the API's", "made", "by an operator that starts"], rows)


async def _reconciled_alone(harness: Harness, number: int) -> float:
    """List everything and reconcile all; give milliseconds of CPU per Agent."""
    begun = time.process_time()
    await harness.observe()
    for index in range(number):
        await harness.reconciler.reconcile(("team", f"agent-{index}"))
    return (time.process_time() - begun) * 1000 / number


def _together(number: int) -> tuple[float, ...]:
    with ApiInThread() as api, _operator(api) as operator:
        return _made(api, operator, number)


def _made(api: ApiInThread, operator: Peer, number: int) -> tuple[float, ...]:
    """Create Agents at once, and wait until each has its children and a status."""
    api.writes.clear()
    reads, cpu, begun = api.reads, operator.cpu(), time.perf_counter()
    for index in range(number):
        api.put(AGENT, _agent(index))
    _until(lambda: min(len(api.all(kind)) for kind in (DEPLOYMENT, SERVICE)) >= number)
    seconds = time.perf_counter() - begun
    _until(lambda: all("status" in agent for agent in api.all(AGENT)))
    writes = _writes(api)
    others = (api.reads - reads) / number
    return seconds, operator.cpu() - cpu, writes / number, others, operator.memory()


def _ready(api: ApiInThread, operator: Peer) -> list[str]:
    """Let all pods get ready, and be polled."""
    api.writes.clear()
    reads, cpu, begun = api.reads, operator.cpu(), time.perf_counter()
    for index in range(MANY):
        api.put(POD, _pod(index))
    api.settle()
    _until(lambda: all(_is_settled(agent) for agent in api.all(AGENT)))
    seconds = time.perf_counter() - begun
    found = seconds, operator.cpu() - cpu, _writes(api) / MANY, (api.reads - reads) / MANY
    return _row("all pods get ready, and are asked", [(*found, operator.memory())])


def _restarted(api: ApiInThread, operator: Peer) -> list[str]:
    """Wait until a new operator has reconciled everything once."""
    api.writes.clear()
    reads, begun = api.reads, time.perf_counter()
    _until(lambda: _reconciled(operator) >= MANY)
    seconds, cpu = time.perf_counter() - begun, operator.cpu()
    time.sleep(5)
    found = seconds, cpu, _writes(api) / MANY, (api.reads - reads) / MANY, operator.memory()
    return _row(f"a restart among {MANY}", [found])


def _idle(api: ApiInThread, operator: Peer) -> list[str]:
    """Let nothing happen for a while."""
    time.sleep(65)  # until it has polled every Agent once
    api.writes.clear()
    reads, cpu, begun = api.reads, operator.cpu(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    seconds, used = time.perf_counter() - begun, operator.cpu() - cpu
    refused = len([write for write in api.writes if write[2] >= 400])
    others = (api.reads - reads + refused) / MANY
    row = _row("", [(seconds, used, _writes(api) / MANY, others, operator.memory())])
    return [f"idle with {MANY}: {used / seconds:.1%} of a core", *row[1:]]


def _row(what: str, rounds: list[tuple[float, ...]]) -> list[str]:
    columns = zip(*rounds, strict=True)
    seconds, cpu, writes, others, memory = map(statistics.median, columns)
    return [what, f"{seconds:.1f}", f"{cpu:.1f}", f"{writes:.2f}", f"{others:.2f}", f"{memory:.0f}"]


@contextlib.contextmanager
def _operator(api: ApiInThread) -> Iterator[Peer]:
    """Start an operator for this API, and wait until it is the active one."""
    kubeconfig = {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {"server": api.url}}],
        "users": [{"name": "bench", "user": {}}],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(kubeconfig))
        file.flush()
        health = free_port()
        environ = {"KUBECONFIG": file.name, "POD_NAME": "bench", "HEALTH_PORT": str(health)}
        flags = ["--pod-image", "diptych:1", "--namespace", "system"]
        command = [sys.executable, "-m", "diptych_operator", *flags]
        with started("operator", command, environ, says_port=False) as peer:
            peer.port = health
            _until(lambda: _leads(peer))
            yield peer


@contextlib.contextmanager
def pods_that_answer() -> Iterator[None]:
    """Serve `/ready` of all pods; nothing is missing."""
    server = _Pods((POD_ADDRESS, PORT), _Ready)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Pods(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """On a busy machine the operator may not have waited for the answer."""


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"missing": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _agent(index: int) -> dict[str, Any]:
    """Make an Agent with a tool server and a key; nine of ten may delegate to the tenth."""
    first = index - index % 10
    peers = [{"name": f"agent-{first}"}] if first != index else []
    return {
        "metadata": {"name": f"agent-{index}", "namespace": "team"},
        "spec": {
            "description": "Answers questions.",
            "instructions": "You are a careful assistant. " * 20,
            "model": {
                "name": "gpt-5-mini",
                "endpoint": "https://models.example.com/v1",
                "apiKey": {"secretKeyRef": {"name": "models", "key": "api-key"}},
            },
            "tools": [{"name": "wiki", "url": "https://wiki.example.com/mcp", "allow": ["find"]}],
            "agents": peers,
        },
    }


def _pod(index: int) -> dict[str, Any]:
    name = f"agent-{index}"
    return {
        "metadata": {"name": f"{name}-0", "namespace": "team", "labels": child_labels(name)},
        "status": {"phase": "Running", "podIP": POD_ADDRESS},
    }


def _is_settled(agent: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in agent["status"]["conditions"]}
    return SETTLED.items() <= conditions.items()


def _writes(api: ApiInThread) -> int:
    """Count the writes that have changed something, besides the Lease's."""
    return len([write for write in api.writes if "leases" not in write[1] and write[2] < 400])


def _leads(operator: Peer) -> bool:
    return _metric(operator, "diptych_operator_leads") == 1


def _reconciled(operator: Peer) -> float:
    return _metric(operator, "diptych_operator_reconciles_total")


def _metric(operator: Peer, name: str) -> float:
    """Add a metric's values up, whatever its labels."""
    try:
        with urlopen(f"http://127.0.0.1:{operator.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except (URLError, TimeoutError):  # it does not listen yet, or has no core for it
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def _until(claim: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + MOST_SECONDS
    while not claim():
        if time.monotonic() > ends_at:
            raise TimeoutError("the operator does not get there")
        time.sleep(0.2)
