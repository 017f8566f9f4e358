"""Records runs in a new folder: `PYTHONPATH=tests python tests/recorded/record.py format-2`."""

import asyncio
import json
import random
import sys
from pathlib import Path

from support.doubles import FunctionTools, tool
from support.native_models import NativeModel, RefusingModel, native
from support.replicas import ask, replica, told
from support.shared_store import SharedStore
from support.virtual_time import run_virtually
from support.window_model import WindowModel

from diptych.core.catalog import Unavailable
from diptych.core.codec import decode, encode
from diptych.core.errors import DelegationError, ToolError
from diptych.core.events import InputRequest, MessageQueued
from diptych.core.messages import CallOutput, Message
from diptych.core.reducer import replay
from diptych.core.run_settings import RunSettings
from diptych.policy.rules import Policy, Rule
from diptych.runs.approvals import DecisionRequest
from diptych.runs.definition import AgentDefinition
from diptych.runs.hooks import Hook, Hooks
from diptych.runs.inputs import InputReply
from diptych.runs.request import RunRequest

HERE = Path(__file__).parent
SLOWLY = {"content": "one two three four five", "chunk_ms": 1000}
CHARGE = '{"tool": "charge", "arguments": {"amount": 3}}'
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
STEPS = (
    '[{"tool": "look", "id": "a", "arguments": {"at": "ü"}},'
    ' {"tool": "charge", "id": "b", "arguments": {"amount": "${a.value}"}},'
    ' {"tool": "broken", "id": "c"}, {"tool": "look", "after": ["c"]}]'
)


async def _charge(amount=1):
    await asyncio.sleep(3)
    return CallOutput(f"charged {amount}", {"charged": amount})


async def _look(at=""):
    await asyncio.sleep(3)
    return CallOutput("seen", {"value": 7, "at": at})


async def _broken():
    raise ToolError("failed", "it is broken")


async def _book(context, seat=1):
    answer = await context.ask(InputRequest("form", "Whose seat?", NAME), {"seat": seat})
    return CallOutput(f"seat {seat}: {answer.action} {answer.content}")


async def _peer(request, progress):
    if "fail" in request.task:
        raise DelegationError("timeout", "no answer within 60 s")
    return f"done: {request.task}"


TOOLS = FunctionTools(
    {"charge": _charge, "look": _look, "broken": _broken},
    (tool("charge"), tool("look", read_only=True), tool("broken", sequential=True)),
    (Unavailable("server", "gone", "connection refused"),),
)


def begin(store, name, *replies, model=None, tools=TOOLS, policy=None, hooks=None, **settings):  # noqa: PLR0913
    """Begin a process with tools, a peer and a script."""
    model = model(*replies) if isinstance(model, type) else model
    definition = AgentDefinition("Be brief.", RunSettings(**settings))
    return replica(
        store,
        name,
        *replies,
        model=model,
        tools=tools,
        agents={"peer": _peer},
        definition=definition,
        policy=policy,
        hooks=hooks,
    )


async def one(*replies, request=None, **settings):
    """Record a run that nothing befalls."""
    store = SharedStore()
    at = begin(store, "a", *replies, **settings)
    return store, await _taken(at, request or ask("What is it?"))


async def _taken(at, request):
    run_id = (await at.run(at.runs.start(request))).run_id
    await told(at, run_id)
    await asyncio.sleep(1)
    return run_id


async def taken_over(first, second, *, after):
    """Record a run whose first owner dies after so many seconds."""
    store = SharedStore()
    a, b = begin(store, "a", *first), begin(store, "b", *second)
    run_id = (await a.run(a.runs.start(ask("What is it?")))).run_id
    await asyncio.sleep(after)
    a.kill()
    await told(b, run_id)
    return store, run_id


async def compacted():
    """Record a run whose history is too long for a model that says so itself."""
    store = SharedStore()
    model = WindowModel(3_000, steps=0)
    at = begin(store, "a", model=model)
    roles = ["user", "assistant"] * 30
    said = [Message(role, f"The {n}th thing that was said. " * 9) for n, role in enumerate(roles)]
    return store, await _taken(at, RunRequest((*said, Message("user", "And now?"))))


async def steered(*replies, after, dies=False):
    """Record a run that is sent a message after so many seconds, and whose owner may die then."""
    store = SharedStore()
    a, b = (begin(store, name, *replies, max_parallel_calls=1) for name in "ab")
    run_id = (await a.run(a.runs.start(ask("What is it?")))).run_id
    await asyncio.sleep(after)
    await b.run(b.runs.send_message(run_id, MessageQueued("And what is it not?", "m-1")))
    if dies:
        a.kill()
    await told(b, run_id)
    return store, run_id


async def asked():
    """Record a run of whose calls one is edited, one rejected, and one expires."""
    store = SharedStore()
    policy = Policy((Rule("tool", "charge", "ask", reason="money", expires=9.0),))
    calls = f"[{CHARGE.replace('3', '1')}, {CHARGE.replace('3', '2')}, {CHARGE}]"
    at = begin(store, "a", calls, "{}", "It is mixed.", policy=policy)
    run_id = (await at.run(at.runs.start(ask("What is it?")))).run_id
    await asyncio.sleep(1)
    edit = DecisionRequest("edit", arguments={"amount": 0}, subject="user:eve")
    await at.run(at.runs.answer(run_id, "call_1_1", edit))
    reject = DecisionRequest("reject", "too much", subject="user:eve")
    await at.run(at.runs.answer(run_id, "call_1_2", reject))
    await told(at, run_id)
    return store, run_id


async def questioned():
    """Record a run with a call whose question is answered, and one whose question expires."""
    store = SharedStore()
    calls = '[{"tool": "book"}, {"tool": "book", "arguments": {"seat": 2}}]'
    tools = FunctionTools({"book": _book}, asking=("book",))
    at = begin(store, "a", calls, "{}", "It is booked.", tools=tools)
    run_id = (await at.run(at.runs.start(ask("Book it.")))).run_id
    await asyncio.sleep(1)
    await at.run(
        at.runs.answer(run_id, "call_1_1", InputReply("accept", {"name": "Ada"}, "user:ada"))
    )
    await told(at, run_id)
    return store, run_id


async def queued():
    """Record a run of whose follow-ups one begins a turn, and another is cleared."""
    store = SharedStore()
    at = begin(store, "a", {"content": "{}", "delay_ms": 3000}, "It is this.", "{}", "And that.")
    run_id = (await at.run(at.runs.start(ask("What is it?")))).run_id
    await asyncio.sleep(1)
    await at.run(at.runs.send_message(run_id, MessageQueued("Never mind.", "m-1")))
    await at.run(at.runs.clear_messages(run_id, "user:eve"))
    await at.run(
        at.runs.send_message(run_id, MessageQueued("And what else?", "m-2", is_follow_up=True))
    )
    await told(at, run_id)
    return store, run_id


async def hooked():
    """Record a run of whose calls one is rewritten and one denied, and whose answer is refused."""
    store = SharedStore()
    calls = f"[{CHARGE}, {CHARGE.replace('3', '9')}]"
    at = begin(store, "a", calls, "It is this.", "It is this, please.", hooks=_hooks())
    return store, await _taken(at, ask("What is it?"))


def _hooks():
    async def cap(question):
        amount = question["call"]["arguments"]["amount"]
        return {"deny": "too much"} if amount > 5 else {"arguments": {"amount": 2}}

    async def hide(_):
        return {"result": {"text": "charged"}}

    async def end(_):
        return {"end": True}

    async def polite(question):
        return None if "please" in question["answer"] else {"problem": "say please"}

    points = ("beforeCall", "afterCall", "afterStep", "validateAnswer")
    functions = (cap, hide, end, polite)
    pairs = zip(points, functions, strict=True)
    return Hooks(tuple(Hook(f.__name__, at, f, timeout=2.0) for at, f in pairs))


RUNS = {
    "graph": lambda: one(STEPS, "{}", "It is mixed.", max_parallel_calls=2),
    "delegation": lambda: one('{"agent": "peer", "task": "look"}', "{}", "It is done."),
    "misread": lambda: one(*['{"tool": '] * 2, "It is prose.", max_retries=1),
    "max-steps": lambda: one('{"agent": "peer", "task": "fail"}', max_steps=1),
    "failed": lambda: one("{}", {"error": "the model is ill"}),
    "owner-died-calling": lambda: taken_over(
        [f'[{CHARGE}, {{"tool": "look"}}]'], ["", "{}", "It is unclear."], after=1
    ),
    "answer-reset": lambda: taken_over(["{}", SLOWLY], ["{}", "one more thing"], after=3.5),
    "steered": lambda: steered(f"[{CHARGE}, {CHARGE}]", "{}", "It is neither.", after=1),
    "tools-refused": lambda: one("{}", "It is this.", model=RefusingModel, action_format="auto"),
    "native": lambda: one(
        (native("look", "x", at="ü"), native("charge", "y"), native("look", "z", at="ü")),
        (native("nope", "x"),),
        "I know.",
        "It is this.",
        model=NativeModel,
        action_format="native",
    ),
    "asked": asked,
    "questioned": questioned,
    "compacted": compacted,
    "queued": queued,
    "hooked": hooked,
}


def outcome(rows, kept, history):
    """Say what becomes of a log: how the run ends, and what its conversation is."""
    said = tuple(Message(**message) for message in history)
    run = replay(decoded(rows, kept), said)
    return {
        "phase": run.phase.value,
        "end": encode(run.end)[0],
        "usage": [run.usage.prompt_tokens, run.usage.completion_tokens],
        "messages": [[m.role, m.content] for m in run.messages],
    }


def decoded(rows, kept):
    """Decode the rows of a log."""
    return [
        decode(row["event_type"], row["content"], row["metadata"], lambda k: kept[k].encode())
        for row in rows
    ]


def read(file):
    """Read a recording: its rows, and what its first line holds."""
    shared, *rows = map(json.loads, file.read_text("utf-8").splitlines())
    return rows, shared


def write(folder):
    """Record all runs into a new folder. Raises `FileExistsError` if it is there."""
    folder.mkdir(parents=True)
    random.seed(1)
    for name, story in RUNS.items():
        store, run_id = run_virtually(_whole(story))
        rows = [
            {
                "seq": r.seq,
                "event_type": r.event_type,
                "timestamp": r.timestamp,
                "content": r.content,
                "metadata": r.metadata,
            }
            for r in store.runs[run_id].records
        ]
        keys = {row["content"] for row in rows if row["event_type"] == "offered"}
        kept = {key: store.blobs[key].decode() for key in keys}
        history = _history(store, run_id)
        shared = {"kept": kept, "history": history, "outcome": outcome(rows, kept, history)}
        lines = [shared, *rows]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, "utf-8")


async def _whole(story):
    async with asyncio.timeout(3_600):
        return await story()


def _history(store, run_id):
    session = store.sessions[store.runs[run_id].session_id]
    before = session.messages[: session.runs.index(run_id)]
    return [{"role": m.role, "content": m.content} for messages in before for m in messages]


if __name__ == "__main__":
    write(HERE / sys.argv[1])
