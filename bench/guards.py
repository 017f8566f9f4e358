"""What a policy of 50 rules and budgets cost a run: agents side by side.

"Budgets" are those of a run, its session and the day.

Each rule about the tool that is called has a condition that does not hold. It is evaluated, except
where it asks for an argument first that the call has not (decision 210). Nothing is ever used up.

Not here: the cost of single expressions (`tests/diptych/policy`).
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import client, paired, speed
from bench.processes import Backends, Peer, await_ready, free_port, started

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
_RUN_BUDGET = """\
  budget:
    tokens: 1000000000
    toolCalls: 1000
    modelCalls: 1000
    steps: 1000
    cost: "999"
"""
_SHARED_BUDGET = """\
    perSession: {tokens: 1000000000, toolCalls: 1000000, cost: "9999"}
    perDay: {tokens: 100000000000, toolCalls: 100000000, cost: "99999"}
"""
_RULE = """\
  - match: {{tool: "{glob}"}}
    when: {condition}
    do: deny
"""
_OF_TEXT = "has(args.text) && args.text == 'secret {number}' && !tool.annotations.readOnlyHint"
_OF_AMOUNT = "has(args.amount) && args.amount > {number} && !tool.annotations.readOnlyHint"


def _policy(globs: Sequence[str], condition: str = _OF_TEXT) -> str:
    rules = (
        _RULE.format(glob=glob, condition=condition.format(number=number))
        for number, glob in enumerate(globs)
    )
    return "  policy:\n" + "".join(rules)


_BUDGET = _RUN_BUDGET + _SHARED_BUDGET
_NAMED = _policy([f"bank{n}__*" for n in range(RULES - 1)] + ["echo*"])
_ALL = _policy(["*"] * RULES)
CASES: Mapping[str, str] = {
    "plain": "",
    "plain, again": "",
    "budget of the run": _RUN_BUDGET,
    "budgets": _BUDGET,
    f"{RULES} rules, one about the tool": _NAMED,
    f"{RULES} rules, all about the tool": _ALL,
    f"{RULES} rules, all about an argument it has not": _policy(["*"] * RULES, _OF_AMOUNT),
    f"budget of the run, {RULES} rules, all about the tool": _RUN_BUDGET + _ALL,
    f"budgets, {RULES} rules, one about the tool": _BUDGET + _NAMED,
    f"budgets, {RULES} rules, all about the tool": _BUDGET + _ALL,
}
"""Manifests' guards; one agent stands there twice, to show what the machine makes of nothing."""


async def measure(behind: Backends, effort: speed.Effort) -> str:
    """Measure agents with guards against one without, and give tables."""
    with contextlib.ExitStack() as stack:
        ways = {
            name: paired.Way(stack.enter_context(agent(behind, name, guards)))
            for name, guards in CASES.items()
        }
        beside = {name: "plain" for name in ways if name != "plain"}
        tables = []
        for scenario in effort.scenarios:
            question = client.question(*speed.SCENARIOS[scenario])
            results = await paired.compare(ways, question, effort)
            tables.append(paired.shown(scenario, results, beside))
    return "\n\n".join(tables)


@contextlib.contextmanager
def agent(behind: Backends, name: str, guards: str) -> Iterator[Peer]:
    """Serve an agent with these guards."""
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
