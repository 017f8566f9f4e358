"""An event loop whose clock jumps to what is due next: hours pass at once, no test sleeps.

It does what asyncio's own does, in the same order, with less around it: simulations spend most of
their time in the loop. Sockets and threads are looked for while nothing is ready, and now and then.
"""

import asyncio
import contextvars
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

RESOLUTION = 1e-9  # seconds: what is due as near as this is due together, as in asyncio
POLL_EVERY = 64  # rounds in which something is always ready


class _Handle(asyncio.Handle):
    """A callback, without what asyncio's notes for its debug mode."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: Any = None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """A callback that is due at a time; those of one time keep the order of asyncio's heap."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Any) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = True

    def __lt__(self, other: object) -> bool:
        return False  # the heap compares times first: only those of one time come here


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 1_000.0
        self._due: list[tuple[float, _TimerHandle]] = []
        self._rounds = 0
        super().__init__()

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._due, (when, handle))
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        ready, due = self._ready, self._due
        self._forget_cancelled()
        self._rounds += 1
        if not (ready or self._stopping):
            self._poll()
            if not ready:
                if not due:
                    raise AssertionError("everything waits, and nothing will ever happen")
                self._now = max(self._now, due[0][0])
        elif self._rounds % POLL_EVERY == 0:
            self._poll()
        until = self._now + RESOLUTION
        while due and due[0][0] < until:
            ready.append(heapq.heappop(due)[1])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _forget_cancelled(self) -> None:
        due = self._due
        if len(due) > 100 and self._timer_cancelled_count > len(due) / 2:
            due[:] = [item for item in due if not item[1]._cancelled]
            heapq.heapify(due)
            self._timer_cancelled_count = 0
        while due and due[0][1]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(due)

    def _poll(self) -> None:
        self._process_events(self._selector.select(0))


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
