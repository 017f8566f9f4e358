"""Asking an agent and watching its run to the end, wherever the agent is.

Not here: how an agent is reached (`local`, `remote`), what is shown of its run (`show`).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from diptych.cli.output.screen import Screen
from diptych.cli.output.timeline import TICK_SECONDS, View
from diptych.cli.output.wording import missing_text
from diptych.cli.signals import ABORTED
from diptych.loop.catalog import Unavailable
from diptych.loop.codec import TERMINAL, Record
from diptych.ports import Item, Notice

EXIT_CODES: Mapping[str, int] = {"completed": 0, "failed": 1, "max_steps": 3, "aborted": ABORTED}
"""By the terminal event of a run (loop.md §2)."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that was started."""

    run_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended; `status` is the name of its terminal event."""

    session_id: str
    status: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What an agent lacks now, and whether a script answers in its model's place."""

    missing: Sequence[Unavailable] = ()
    is_scripted: bool = False


Tell = Callable[[Notice], None]
"""Is told what happens to a question before its run has begun."""


def untold(notice: Notice) -> None:
    """Tell nobody."""


class Askable(Protocol):
    """An agent that takes questions. All but `name` raise a `DiptychError` when it is gone."""

    name: str

    async def standing(self) -> Standing: ...

    async def begin(self, question: str, session_id: str | None, tell: Tell = untold) -> Begun: ...

    def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Give a run's records after `after`, then what happens, up to its end."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Abort a run, and return when its end is on record."""
        ...


async def ask(agent: Askable, question: str, session_id: str | None, view: View) -> Ended:
    """Ask, and show the run until it ends. Being cancelled aborts the run, and shows that too.

    Whoever is cancelled before the run has begun is told nothing of it.
    """
    async with ticking(view):
        begun = await agent.begin(question, session_id, view.show)
        watch = _Watch(agent, begun.run_id, view)
        try:
            await watch.to_the_end()
        except asyncio.CancelledError:
            await agent.cancel(begun.run_id)
            await watch.to_the_end()
            if task := asyncio.current_task():
                task.uncancel()
    return Ended(begun.session_id, watch.status)


async def attend(agent: Askable, run_id: str, view: View) -> str:
    """Show a run until it ends; give the name of its terminal event. Being cancelled leaves it."""
    watch = _Watch(agent, run_id, view)
    async with ticking(view):
        await watch.to_the_end()
    return watch.status


@contextlib.asynccontextmanager
async def ticking(view: View) -> AsyncIterator[None]:
    """Let time pass in a view while the block lasts."""

    async def tick() -> None:
        with contextlib.suppress(OSError):  # whoever writes next is told of it
            while True:
                await asyncio.sleep(TICK_SECONDS)
                view.tick()

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def introduce(agent: Askable, screen: Screen) -> None:
    """Say what a person should know before the first question."""
    standing = await agent.standing()
    if standing.is_scripted:
        screen.line(("DEBUG_MOCK_RESPONSES is on: a script answers instead of a model.", "dim"))
    for missing in standing.missing:
        screen.line(("! ", "yellow"), f"unavailable: {missing_text(missing)}")


class _Watch:
    """Follows one run, and knows how far it has come."""

    def __init__(self, agent: Askable, run_id: str, view: View) -> None:
        self.status = "failed"
        self._agent = agent
        self._run_id = run_id
        self._view = view
        self._seq = 0

    async def to_the_end(self) -> None:
        async with aclosing(self._agent.follow(self._run_id, self._seq)) as batches:
            async for batch in batches:
                for item in batch:
                    self._take(item)

    def _take(self, item: Item) -> None:
        if isinstance(item, Record):
            self._seq = item.seq
            if item.event_type in TERMINAL:
                self.status = item.event_type
        elif item.type == "reset":
            lost_from: Any = item.fields.get("last_seq", 0)
            self._seq = lost_from  # numbers go on from there
        self._view.show(item)
