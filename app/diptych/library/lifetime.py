"""Opens an agent at its first use in an event loop, and closes it with the loop.

`run_sync` has a loop of its own, in a thread of the process, so that connections and sessions last
from one call to the next.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeAlias, TypeVar

from diptych.serve.hosted_agent import HostedAgent

EXIT_SECONDS = 10.0  # for which the end of the process waits for agents to close

Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[HostedAgent]]
T = TypeVar("T")


class Lifetime:
    """An agent that is open in one event loop.

    One task opens and closes it, so that it also closes when the loop cancels its tasks at its end,
    as `asyncio.run` does.
    """

    def __init__(self, name: str, opening: Opening) -> None:
        self._loop = asyncio.get_running_loop()
        self._key = (self._loop, name)
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[HostedAgent] = self._loop.create_future()
        self._task = self._loop.create_task(self._live(opening))

    @property
    def is_over(self) -> bool:
        return self._task.done() or self._loop.is_closed() or self._closing.is_set()

    async def hosted(self) -> HostedAgent:
        """Wait until the agent is open. Raises what opening it raises."""
        return await asyncio.shield(self._opened)

    async def aclose(self) -> None:
        self._close()
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return
        if error := self._task.exception():
            raise error

    def let_go(self) -> None:
        """Close it soon; from any thread."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._closing.set()
        _CLOSING[self._task] = self._key
        self._task.add_done_callback(lambda task: _CLOSING.pop(task, None))

    async def _live(self, opening: Opening) -> None:
        try:
            await self._wait_for_former()
            async with opening() as hosted:
                await hosted.wait_until_tried()
                self._opened.set_result(hosted)
                await self._closing.wait()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)
        finally:
            self._opened.cancel()

    async def _wait_for_former(self) -> None:
        """Wait for agents of this name that are closing in this loop: they may have its file."""
        if former := [task for task, key in tuple(_CLOSING.items()) if key == self._key]:
            await asyncio.wait(former, timeout=EXIT_SECONDS)


_CLOSING: dict[asyncio.Task[None], tuple[asyncio.AbstractEventLoop, str]] = {}


def let_all_go(lifetimes: dict[asyncio.AbstractEventLoop, Lifetime]) -> None:
    """Close an agent, soon, in all loops: the program has dropped it."""
    for lifetime in lifetimes.values():
        lifetime.let_go()


class _BackgroundLoop:
    """The event loop of `run_sync`, in a thread that ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:
            if self._loop is None:
                self._loop = self._start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def forget(self) -> None:
        """Have a child of a fork start a loop of its own: it has no thread."""
        self.__init__()  # type: ignore[misc]

    def _start(self) -> asyncio.AbstractEventLoop:
        ready: Future[asyncio.AbstractEventLoop] = Future()

        async def serve() -> None:
            self._stop = asyncio.Event()
            ready.set_result(asyncio.get_running_loop())
            try:
                await self._stop.wait()
            finally:  # maybe because of a KeyboardInterrupt in a task: the next call has a new loop
                with self._lock:
                    self._loop = None

        self._thread = threading.Thread(
            target=lambda: asyncio.run(serve()), name="diptych run_sync", daemon=True
        )
        self._thread.start()
        atexit.register(self._end)
        return ready.result()

    def _end(self) -> None:
        loop = self._loop
        if loop and self._stop and self._thread:
            loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(EXIT_SECONDS)


_background = _BackgroundLoop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_background.forget)


def run_sync(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do async work in the process's background loop, and wait for it."""
    future = _background.submit(work())
    try:
        return future.result()
    finally:
        future.cancel()  # the wait was interrupted


def refuse_in_loop(name: str, *, called: str = "run_sync") -> None:
    """Raise `RuntimeError` in a running event loop, which waiting would hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{called} cannot be called in a running event loop; write: await agent.{name}(…)"
    )
