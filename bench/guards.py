"""What a policy of 50 rules and budgets cost a run: agents side by side.

"Budgets" are those of a run, its session and the day.

Each rule about the tool that is called has a condition that does not hold. Nothing is ever used up.

All agents are started several times: of two processes of one program one is up to 2 % slower.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench import client, paired, speed
from bench.processes import ROOT, Backends, Peer, await_ready, free_port, started

sys.path.append(str(ROOT / "tests"))

from support.redis_server import redis_server

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
    tokens: 200000
    toolCalls: 50
    modelCalls: 50
    steps: 50
    cost: "2"
"""
_SHARED_BUDGET = """\
    perSession: {tokens: 1000000, toolCalls: 500, cost: "10"}
    perDay: {tokens: 100000000, toolCalls: 1000000, cost: "1000"}
"""
_SESSIONS = "  sessions: {redis: {urlFrom: {secretKeyRef: {name: store, key: url}}}}\n"
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


_STARTS = 4
_BOTH = "both plain, mean"
_WITH_REDIS = ("plain", "plain, again", "budgets", f"budgets, {RULES} rules, all about the tool")


async def measure(behind: Backends, effort: speed.Effort) -> str:
    """Measure agents with guards against one without, and give tables."""
    tables = []
    with redis_server() as redis:
        for scenario in effort.scenarios:
            tables.append(await _compared(behind, scenario, effort, CASES))
            cases = {name: CASES[name] + _SESSIONS for name in _WITH_REDIS}
            table = await _compared(behind, scenario, effort, cases, STORE_URL=redis.url)
            tables.append(f"With Redis:\n\n{table}")
    return "\n\n".join(tables)


async def _compared(
    behind: Backends,
    scenario: str,
    effort: speed.Effort,
    cases: Mapping[str, str],
    **environ: str,
) -> str:
    """Compare agents in one scenario; each start has its part of the rounds."""
    question = client.question(*speed.SCENARIOS[scenario])
    part = replace(effort, rounds=-(-effort.rounds // _STARTS))
    results = {name: speed.Measured() for name in cases}
    for _ in range(_STARTS):
        with contextlib.ExitStack() as stack:
            ways = {
                name: paired.Way(stack.enter_context(agent(behind, name, guards, **environ)))
                for name, guards in cases.items()
            }
            for name, found in (await paired.compare(ways, question, part)).items():
                results[name].p50 += found.p50
                results[name].cpu += found.cpu
    results[_BOTH] = _mean(results["plain"], results["plain, again"])
    return paired.shown(scenario, results, dict.fromkeys(cases, _BOTH))


def _mean(one: speed.Measured, other: speed.Measured) -> speed.Measured:
    """Give what two agents took on average, round by round: one may be slower by its start."""
    return speed.Measured(
        p50=[(a + b) / 2 for a, b in zip(one.p50, other.p50, strict=True)],
        cpu=[(a + b) / 2 for a, b in zip(one.cpu, other.cpu, strict=True)],
    )


@contextlib.contextmanager
def agent(behind: Backends, name: str, guards: str, **environ: str) -> Iterator[Peer]:
    """Serve an agent with these guards, and more variables in its environment."""
    text = _MANIFEST.format(model=behind.model_url, tools=behind.tools_url) + guards
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.yaml"
        file.write_text(text)
        command = [sys.executable, "-m", "diptych", "serve", str(file), "--data", "none"]
        with started(name, command, {"PORT": str(port), **environ}, says_port=False) as peer:
            peer.port = port
            await_ready(port)
            yield peer
