"""The inbox of one run, read by `Runner.drive`, and its sources.

RunTasks      results of tasks: `Replied` of the model, `Returned` of a call, `CallsAllowed`
  TextBatcher   `TextDue`, when text of a streamed answer is to be logged
  Runner        stops, messages and decisions from outside
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from diptych.core.commands import MakeCall
from diptych.core.events import Event

TEXT_INTERVAL = 0.025  # seconds; pieces of an answer within it become one event (loop.md §9)
CANCEL_SECONDS = 0.9  # for tasks to cancel at their servers, as aborts take effect within 1 s


@dataclass(frozen=True, slots=True)
class TaskCrashed:
    """A task raised an unexpected error, a bug; raised again in `Runner.drive`."""

    cause: BaseException


@dataclass(frozen=True, slots=True)
class TextDue:
    """`TextBatcher` has text of the answer to log."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Another process is to continue the run."""


@dataclass(frozen=True, slots=True)
class CallsAllowed:
    """These calls may be made: the budgets have been charged."""

    commands: Sequence[MakeCall]


InboxItem: TypeAlias = Event | TaskCrashed | TextDue | HandOver | CallsAllowed
Inbox: TypeAlias = "asyncio.Queue[InboxItem]"
Item = TypeVar("Item", bound=InboxItem)


class RunTasks:
    """The tasks of one run; the results go into the `inbox`, unless cancelled.

    With `leaves_remote`, other agents continue their tasks when those here are cancelled.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_cancelled = False
        self.leaves_remote = False

    def start(self, work: Coroutine[Any, Any, InboxItem]) -> None:
        """Start a task; its result goes into the inbox."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def start_eagerly(self, work: Coroutine[Any, Any, Item]) -> Item | None:
        """Start a task; return its result if it does not wait, else as `start`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        await asyncio.sleep(0)
        if not task.done():
            task.add_done_callback(self._on_done)
            return None
        self._tasks.discard(task)
        return task.result()

    async def cancel_all(self, *, leaves_remote: bool = False) -> None:
        """Cancel all tasks, once; wait at most 0.9 s for them.

        With `leaves_remote`, tasks at other agents continue, as another process takes over the run.
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

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            cause = task.exception()
            self.inbox.put_nowait(TaskCrashed(cause) if cause else task.result())


class TextBatcher:
    """Merges pieces of an answer: the first is due at once, later ones in batches of 25 ms.

    Puts `TextDue` into the `inbox` when a batch is due.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._pieces: deque[str] = deque()
        self._is_void = False
        self._is_due = False
        self._next_at = 0.0

    @property
    def has_text(self) -> bool:
        """Whether there is text to send, or sent text has become void."""
        return bool(self._pieces) or self._is_void

    def add(self, text: str) -> None:
        if not text:
            return
        self._pieces.append(text)
        self._put_when_due()

    def void(self) -> None:
        """Make all text so far void."""
        self._pieces.clear()
        self._is_void = True
        self._put_when_due()

    def take(self) -> tuple[bool, str]:
        """Return whether the text sent before is void, and the new text."""
        self._is_due = False
        text, is_void = "".join(self._pieces), self._is_void
        self._is_void = False
        if text or is_void:
            self._pieces.clear()
            self._next_at = asyncio.get_running_loop().time() + TEXT_INTERVAL
        return is_void, text

    def _put_when_due(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_at:
            self._inbox.put_nowait(TextDue())
        else:
            loop.call_at(self._next_at, self._inbox.put_nowait, TextDue())
