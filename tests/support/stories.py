"""What stories of processes on one store have in common."""

import asyncio
import functools

from support.doubles import FunctionTools, tool
from support.replicas import Replica, ask
from support.shared_store import LEASE_SECONDS
from support.virtual_time import run_virtually

from diptych.core.codec import TERMINAL, Record
from diptych.ports import Delta, Model

TAKEN_UP = LEASE_SECONDS + 5  # seconds within which a run whose owner has died goes on
CALL = '{"tool": "charge"}'
SLOWLY = {"content": "one two three four five six", "chunk_ms": 1000}


def virtually(story):
    async def bounded(*arguments, **named):
        async with asyncio.timeout(3_600):
            await story(*arguments, **named)

    @functools.wraps(story)
    def test(*arguments, **named):
        run_virtually(bounded(*arguments, **named))

    return test


def now():
    return asyncio.get_running_loop().time()


class Counted:
    """A tool `charge`, the same for all processes, that counts and takes three seconds."""

    def __init__(self, **marks):
        self.count = 0
        self.tools = FunctionTools({"charge": self._charge}, (tool("charge", **marks),))

    async def _charge(self, **_):
        self.count += 1
        await asyncio.sleep(3)
        return "done"


class Hung(Model):
    """A model that never answers."""

    async def complete(self, request):
        await asyncio.Event().wait()

    async def stream(self, request):
        yield Delta("begun ")
        await asyncio.Event().wait()


async def begin(at: Replica, text="hi", session_id=None, **rest):
    return (await at.run(at.runs.start(ask(text, session_id, **rest)))).run_id


def log(store, run_id):
    return store.runs[run_id].records


def records(items):
    return [item for item in items if isinstance(item, Record)]


def text_of(items):
    """The answer as a reader has it: what follows the last reset."""
    text = ""
    for item in records(items):
        if item.event_type == "answer_reset":
            text = ""
        elif item.event_type == "text":
            text += item.content
    return text


def content(items, event_type):
    return [item.content for item in records(items) if item.event_type == event_type]


def ends(items):
    return [item.event_type for item in records(items) if item.event_type in TERMINAL]
