"""What a policy of 50 rules and budgets of every kind cost a run: two agents side by side.

Each rule about the tool that is called has a condition that is evaluated and does not hold. Nothing
is ever used up.

Not here: the cost of single expressions (`tests/diptych/policy`).
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.durable import SCENARIOS, compared
from bench.processes import Backends, Peer, await_ready, free_port, started
from bench.report import table

RULES = 50
_MANIFEST = """\
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: bench}}
spec:
  instructions: You are a careful assistant.
  model:
    name: instant-1
    endpoint: {model}
    prices: {{input: "0.25", output: "2.00"}}
  tools:
  - {{name: echo, url: "{tools}"}}
  loop: {{maxSteps: 8}}
"""
_BUDGET = """\
  budget:
    tokens: 1000000000
    toolCalls: 1000
    modelCalls: 1000
    steps: 1000
    cost: "999"
    perSession: {tokens: 1000000000, toolCalls: 1000000, cost: "9999"}
    perDay: {tokens: 100000000000, toolCalls: 100000000, cost: "99999"}
"""
_RULE = """\
  - match: {{tool: "{glob}"}}
    when: has(args.amount) && args.amount > {number} && !tool.annotations.readOnlyHint
    do: deny
"""


async def measure(behind: Backends) -> str:
    """Measure an agent with guards against one without, and give a table."""
    named = _policy([f"bank{n}__*" for n in range(RULES - 1)] + ["echo*"])
    cases = {
        "budgets": _BUDGET,
        f"budgets, {RULES} rules, one of them about the tool": _BUDGET + named,
        f"budgets, {RULES} rules, all about the tool": _BUDGET + _policy(["*"] * RULES),
    }
    rows = []
    for what, guards in cases.items():
        with _agent(behind, "without", "") as off, _agent(behind, "guarded", guards) as on:
            rows.append(await compared(f"S1: {what}", SCENARIOS["S1"], off, on))
    head = ["guards on against off", "CPU ms, off", "on", "ratio"]
    return table([*head, "first token ms, off", "later by ms (p50)"], rows)


def _policy(globs: Sequence[str]) -> str:
    rules = (_RULE.format(glob=glob, number=number) for number, glob in enumerate(globs))
    return "  policy:\n" + "".join(rules)


@contextlib.contextmanager
def _agent(behind: Backends, name: str, guards: str) -> Iterator[Peer]:
    text = _MANIFEST.format(model=behind.model_url, tools=behind.tools_url) + guards
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.yaml"
        file.write_text(text)
        command = [sys.executable, "-m", "diptych", "serve", str(file)]
        with started(name, command, {"PORT": str(port)}, says_port=False) as peer:
            peer.port = port
            await_ready(port)
            yield peer
