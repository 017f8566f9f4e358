"""What a run costs in each call format: the core and the encoding of its requests, no network.

A run of five steps with one call each, in a session of many messages, with few and many tools.
Rounds of both formats take turns, so that a busy machine slows both.
"""

import json
import statistics
import time
from collections.abc import Sequence

from bench.report import table
from diptych.adapters.openai_chat.dialect import Dialect
from diptych.adapters.openai_chat.encoding import encode_request, request_fields
from diptych.config.settings import ModelConfig
from diptych.loop.catalog import Catalog, Tool
from diptych.loop.codec import catalog_blob
from diptych.loop.commands import AskModel, Command, Emit, MakeCall
from diptych.loop.events import Called, CallFormat, Event, Offered, Replied, Returned, RunRequested
from diptych.loop.messages import Message, NativeCall, Result
from diptych.loop.prompt import native_system_prompt, system_prompt
from diptych.loop.reducer import advance
from diptych.loop.run_settings import RunSettings
from diptych.loop.state import Run

STEPS = 5
ROUNDS = 30
TOOLS, HISTORY = (1, 1_000), (0, 1_000)
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_MODEL = ModelConfig("instant-1", "http://127.0.0.1/v1")


def measure() -> str:
    """Give a table of CPU milliseconds per run, and of bytes that its requests have."""
    rows = [_row(tools, history) for tools in TOOLS for history in HISTORY]
    head = ["tools", "messages before", "ms, json", "ms, native", "MB, json", "MB, native"]
    return table(head, rows)


def _row(tools: int, history: int) -> list[str]:
    offered = [_offered(tools, call_format) for call_format in ("json", "native")]
    before = tuple(
        Message("assistant" if n % 2 else "user", f"message {n} " * 10) for n in range(history)
    )
    taken: list[list[float]] = [[], []]
    sizes = [0, 0]
    for _ in range(ROUNDS):
        for place, offer in enumerate(offered):
            begun = time.process_time()
            sizes[place] = _run(offer, before)
            taken[place].append((time.process_time() - begun) * 1e3)
    times = [f"{statistics.median(some):.2f}" for some in taken]
    return [str(tools), str(history), *times, *(f"{size / 1e6:.2f}" for size in sizes)]


def _offered(tools: int, call_format: CallFormat) -> Offered:
    catalog = Catalog(
        tuple(Tool("box", f"echo{n}", "Says a text again.", _SCHEMA) for n in range(tools))
    )
    settings = RunSettings(max_steps=STEPS + 1, action_format=call_format)
    prompts = system_prompt("Be brief.", catalog), native_system_prompt("Be brief.", catalog)
    offered, _ = catalog_blob(catalog, prompts[0], settings, prompts[1])
    return Offered(
        catalog, prompts[0], settings, offered.key, "n", prompts[1], action_format=call_format
    )


def _run(offered: Offered, history: tuple[Message, ...]) -> int:
    """Take a run through its steps; give the bytes of its requests."""
    run = Run(history=history)
    size = 0
    events: list[Event] = [RunRequested("hi"), offered]
    while events:
        run, commands = advance(run, events.pop(0))
        for command in commands:
            more, sent = _obeyed(command, run, is_native=offered.action_format == "native")
            events += more
            size += sent
    return size


def _obeyed(command: Command, run: Run, *, is_native: bool) -> tuple[Sequence[Event], int]:
    """Do as the model, the tools and the adapter do; give events, and the bytes of a request."""
    match command:
        case AskModel(request=request, purpose="actions"):
            dialect = Dialect()
            fields = request_fields(_MODEL, request, dialect, streamed=False)
            sent = len(encode_request(fields, request.messages, dialect))
            return ([_reply(run.step, is_native=is_native)] if run.step < STEPS else [], sent)
        case MakeCall(call, step):
            return [Called(call, step), Returned(Result(call.id, "ok"), "tool", "echo0")], 0
        case Emit(event):
            return [event], 0
        case _:
            return [], 0


def _reply(step: int, *, is_native: bool) -> Replied:
    arguments = {"text": f"hello {step}"}
    if is_native:
        return Replied("", calls=(NativeCall("call_a", "echo0", json.dumps(arguments)),))
    return Replied(json.dumps({"tool": "echo0", "arguments": arguments}))
