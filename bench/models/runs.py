"""Real runs, through all of Diptych, with a real model that answers in any form.

Each run must end in one terminal event within its bounds, whatever the model writes; no answer may
hold a call, and no call may be left open. Nothing is said of whether the answers are good. Under
each template they are asked in every way: both call formats, both answer modes, and with a schema.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from bench.models.questions import KINDS, chosen
from bench.models.server import ModelServer, model_server, templates
from bench.report import table
from diptych import Agent
from diptych.core.answer_gate import is_call, is_only_no_op
from diptych.core.catalog import Catalog, Peer, Tool
from diptych.core.codec import TERMINAL, Record
from diptych.runs.answers import whole_answer

OWN = "its own"
TEMPLATES = (
    OWN,
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.2-3B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "Qwen-Qwen2.5-7B-Instruct",
)
MAX_STEPS = 2
MAX_REPAIRS = 2  # of an answer that does not fit a schema: the default
MAX_MODEL_CALLS = MAX_STEPS + 1 + 1 + MAX_REPAIRS  # the answer, which is asked for once more
RUN_SECONDS = 900.0  # a model on a busy machine is slow
AT_ONCE = 4  # runs of one server
TEMPLATES_AT_ONCE = 2  # each server has one thread
TOKENS = 24  # of a reply: what it says matters less than that it is said
MAX_NUMBER = 99
SHARED = ("-np", "4", "-c", "12288", "-t", "1", "-tb", "1")
JSON_TOKENS = 60  # of a JSON answer, which must come to its end
OFFERED = Catalog(
    tuple(Tool("demo", name, "", {}) for name in ("echo", "calculate", "planet")),
    (Peer("researcher", ""),),
)
_ENDS_OF_CALLS = {"tool_result", "tool_error", "delegation_response", "delegation_error"}
_STARTS_OF_CALLS = {"tool_call", "delegation_request"}

MANIFEST = """\
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: helper}}
spec:
  description: Helps.
  instructions: You are a helpful assistant.{schema}
  model:
    name: smollm2
    endpoint: {url}
    actionFormat: {action_format}
    parameters: {{temperature: "0", maxTokens: {tokens}}}
    timeouts: {{firstByte: 300s, idle: 300s, total: 600s}}
  tools:
  - name: demo
    command: [{python}, -m, diptych, demo-tools]
  agents:
  - name: researcher
  loop: {{answerMode: {answer_mode}, maxSteps: {steps}, onMaxSteps: answer, deadline: {seconds}s}}
---
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: researcher}}
spec:
  description: Finds facts.
  instructions: You find facts.
  model:
    name: smollm2
    endpoint: {url}
    parameters: {{temperature: "0", maxTokens: {tokens}}}
    timeouts: {{firstByte: 300s, idle: 300s, total: 600s}}
  loop: {{maxSteps: {steps}, deadline: {seconds}s}}
"""
SCHEMA_LINES = """
  outputSchema:
    type: object
    properties: {found: {type: boolean}, number: {type: integer, maximum: 99}}
    required: [found, number]
    additionalProperties: false"""
EXTRA = (
    "Use the calculate tool: what is 6 * 7?",
    "Call planet for Mars, and echo its name.",
    "Ask the researcher how far Venus is from the Sun.",
    "Delegate to researcher: the day of Saturn.",
    "Echo hello three times, with three calls.",
    "Reply with {} only.",
    'Reply with {"tool": "echo"} only.',
    "Write a JSON object with your name.",
    "",
    "Say nothing.",
)


@dataclass(frozen=True, slots=True)
class Way:
    """A way in which an agent asks its model."""

    action_format: str
    answer_mode: str = "separate"
    has_schema: bool = False

    def __str__(self) -> str:
        return f"{self.action_format}, {'schema' if self.has_schema else self.answer_mode}"


WAYS = (Way("json"), Way("native"), Way("json", "direct"), Way("native", "direct"))
SCHEMA_WAYS = (Way("json", has_schema=True), Way("native", has_schema=True))


def measure(per_template: int, *, only_schema: bool = False) -> tuple[str, bool]:
    """Run so many runs under each template, and a quarter as many with a schema for the answer.

    With `only_schema` the latter alone. Give the table, and whether all is as it must be.
    """
    by_name = {path.stem: path for path in templates()}
    ways = [(w, share) for w, share in shares(per_template) if w.has_schema or not only_schema]
    with ThreadPoolExecutor(TEMPLATES_AT_ONCE) as threads:
        played = threads.map(lambda name: _under(name, by_name.get(name), ways), TEMPLATES)
        rows, problems = zip(*(row for rows in played for row in rows), strict=True)
    head = ["chat template", "asked in", "runs", "how they ended", "seconds", "problems"]
    found = [problem for some in problems for problem in some]
    return "\n".join([table(head, rows), "", *found]), not found


def _under(
    name: str, template: Path | None, ways: Sequence[tuple[Way, list[str]]]
) -> list[tuple[list[str], list[str]]]:
    """Make the runs of one template; give a row for each way, and what is wrong with its runs."""
    made = []
    with model_server(*SHARED, template=template) as server:
        for way, messages in ways:
            begun = time.monotonic()
            ends, found = asyncio.run(_runs_with(server, messages, way))
            told = ", ".join(f"{count} {end}" for end, count in ends.most_common())
            seconds = f"{time.monotonic() - begun:.0f}"
            row = [name, str(way), str(ends.total()), told, seconds, str(len(found))]
            print(*row, *found, sep=" | ", file=sys.stderr, flush=True)
            made.append((row, [f"- {name}, {way}: {problem}" for problem in found]))
    return made


def shares(per_template: int) -> list[tuple[Way, list[str]]]:
    """Give the messages of each way under one template."""
    messages, in_schema = questions(per_template), questions(max(2, per_template // 4))
    found = [(way, messages[n :: len(WAYS)]) for n, way in enumerate(WAYS)]
    return found + [(way, in_schema[n :: len(SCHEMA_WAYS)]) for n, way in enumerate(SCHEMA_WAYS)]


def questions(count: int) -> list[str]:
    """Give messages of every kind in turn, the odd ones first."""
    pools = [[q.ask for name in ("tune", "judge") for q in chosen(kind, name)] for kind in KINDS]
    turns = [pool[n] for n in range(max(map(len, pools))) for pool in pools if n < len(pool)]
    return [*filter(None, EXTRA), *turns][:count]


async def _runs_with(
    server: ModelServer, messages: Sequence[str], way: Way
) -> tuple[Counter[str], list[str]]:
    ends, problems = Counter[str](), list[str]()
    waiting = iter(messages)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agents.yaml"
        file.write_text(
            MANIFEST.format(
                url=server.url,
                steps=MAX_STEPS,
                seconds=int(RUN_SECONDS),
                tokens=JSON_TOKENS if way.has_schema else TOKENS,
                schema=SCHEMA_LINES if way.has_schema else "",
                action_format=way.action_format,
                answer_mode=way.answer_mode,
                python=sys.executable,
            )
        )
        async with Agent.from_file(file) as agent:

            async def work() -> None:
                for message in waiting:
                    async with asyncio.timeout(RUN_SECONDS + 30):
                        records = await _run(agent, message)
                    ends[_how_it_ended(records)] += 1
                    wrong = wrong_with(records)
                    if way.has_schema and not _is_in_schema(records):
                        wrong.append(f"no answer that fits: {_how_it_ended(records)}")
                    problems.extend(f"{message!r}: {what}" for what in wrong)

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return ends, problems


async def _run(agent: Agent, message: str) -> list[Record]:
    runs, run_id = (await agent.start()).runs, await agent.begin(message)
    async with aclosing(runs.subscribe(run_id)) as batches:
        async for _ in batches:
            pass
    return list(await runs.records(run_id))


def _how_it_ended(records: Sequence[Record]) -> str:
    end = records[-1]
    return str(end.metadata.get("code", "failed")) if end.event_type == "failed" else end.event_type


def _is_in_schema(records: Sequence[Record]) -> bool:
    """Whether a run ended with an answer that fits."""
    try:
        found = json.loads(whole_answer(records) or "")
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and found.keys() == {"found", "number"}
        and isinstance(found["found"], bool)
        and type(found["number"]) is int
        and found["number"] <= MAX_NUMBER
    )


def wrong_with(records: Sequence[Record]) -> list[str]:
    """List what is not as it must be in the record of a run that has ended."""
    types = [record.event_type for record in records]
    wrong = []
    if [t for t in types if t in TERMINAL] != types[-1:]:
        wrong.append(f"its terminal events are {[t for t in types if t in TERMINAL]}")
    if [record.seq for record in records] != list(range(1, len(records) + 1)):
        wrong.append("its seq has gaps")
    asked = types.count("model_reply")
    if asked > MAX_MODEL_CALLS:
        wrong.append(f"{asked} model calls")
    started = [_call_id(record) for record in records if record.event_type in _STARTS_OF_CALLS]
    ended = [_call_id(record) for record in records if record.event_type in _ENDS_OF_CALLS]
    if open_ := set(started) - set(ended):
        wrong.append(f"calls without a result: {sorted(open_)}")
    if len(set(ended)) < len(ended):
        wrong.append("a call has two results")
    answer = whole_answer(records) or ""
    is_action = is_only_no_op(answer) or is_call(answer, OFFERED)  # broken ones, too
    if types[-1] == "completed" and is_action:
        wrong.append(f"its answer is an action: {answer[:200]!r}")
    if types[-1] == "failed" and records[-1].metadata.get("code") == "internal_error":
        wrong.append(f"it failed inside: {records[-1].content}")
    return wrong


def _call_id(record: Record) -> str:
    return str(record.metadata["call_id"])
