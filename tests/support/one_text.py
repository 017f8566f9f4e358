"""Pods that tell one text, as chats and as runs, to those who follow here or there."""

from support.callers import Caller
from support.scene import Scene
from support.stack import script

WORDS = 40
TEXT = " ".join(f"w{n}" for n in range(WORDS))
USUAL = 4.0  # seconds that a run takes
MOCK = script({"content": "{}", "delay_ms": 200}, {"content": TEXT, "chunk_ms": 80})


async def ask(on: Scene, name: str, n: int) -> Caller:
    """Ask one of the pods and hear the run to its end: as a chat, there, or at the other pod."""
    caller = on.caller(f"{name} {n}", n)
    if n % 6 < 2:
        await caller.chat(caller.name, USUAL)
    else:
        await caller.start(caller.name, USUAL)
        if n % 6 > 3:
            caller.turn_to_next()
        await caller.subscribe()
    return caller


def assert_whole(on: Scene) -> None:
    wrong = [(c.name, c.run, c.end, c.text) for c in on.callers if c.text != TEXT]
    assert not wrong
    assert {caller.end for caller in on.callers} == {"completed"}
