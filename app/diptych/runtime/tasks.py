"""What one run waits for: its inbox, and the tasks whose outcomes come into it.

Not here: what the tasks do (`model_caller`, `call_maker`, `hook_caller`), what follows from what
they bring (`runner`).
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from diptych.loop.events import Event

CANCEL_SECONDS = 0.9  # for cancelled tasks to tell their servers: an abort takes effect in 1 s


@dataclass(frozen=True, slots=True)
class TaskCrashed:
    """A task raised what no adapter should: a bug, to be raised where the run is driven."""

    cause: BaseException


@dataclass(frozen=True, slots=True)
class TextArrived:
    """Text of the answer is due to be taken and recorded."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Another process is to go on with the run."""


InboxItem: TypeAlias = Event | TaskCrashed | TextArrived | HandOver
Inbox: TypeAlias = "asyncio.Queue[InboxItem]"
Outcome = TypeVar("Outcome")


class RunTasks:
    """The tasks of one run. What one returns goes into the `inbox`, unless it was cancelled.

    With `leaves_remote` other agents go on with their tasks when those here are cancelled.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._tasks: set[asyncio.Task[Event]] = set()
        self._awaited: asyncio.Task[Any] | None = None  # by whoever drives the run
        self.is_cancelled = False
        self.leaves_remote = False

    def start(self, work: Coroutine[Any, Any, Event]) -> None:
        """Do some work in a task of its own; it returns what has happened."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def wait_for(self, work: Coroutine[Any, Any, Outcome], otherwise: Outcome) -> Outcome:
        """Wait for work before anything else is taken from the inbox.

        Gives `otherwise` if `cancel_awaited` ends that.
        """
        self._awaited = awaited = asyncio.create_task(work)
        try:
            return await awaited
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            return otherwise
        finally:
            self._awaited = None

    def cancel_awaited(self) -> None:
        """The run is to end, or to be handed over: what `wait_for` waits for does not matter."""
        if self._awaited:
            self._awaited.cancel()

    async def cancel_all(self, *, leaves_remote: bool = False) -> None:
        """Cancel all tasks, once; those that do not end in 0.9 s are left to end alone.

        With `leaves_remote` other agents go on with theirs: another process takes the run over.
        """
        if self.is_cancelled:
            return
        self.is_cancelled = True
        self.leaves_remote = leaves_remote
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    def _on_done(self, task: asyncio.Task[Event]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            cause = task.exception()
            self.inbox.put_nowait(TaskCrashed(cause) if cause else task.result())
