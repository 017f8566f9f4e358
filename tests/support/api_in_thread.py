"""The Kubernetes API of `support.kubernetes`, served from a thread of its own."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from support.kubernetes import KubernetesApi


class ApiInThread:
    """A `KubernetesApi` that is served from a thread with a loop of its own.

    For tests with kopf: when it ends, it cancels every task of its loop that is younger than it,
    and so those of a server beside it. What tests call is done in the server's loop.
    """

    def __init__(self) -> None:
        vars(self).update(api=KubernetesApi(), loop=asyncio.new_event_loop(), end=asyncio.Event())
        vars(self)["thread"] = threading.Thread(
            target=self.loop.run_until_complete, args=[self._run()]
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(vars(self)["api"], name)
        if not callable(value) or name in ("before", "after"):
            return value
        return lambda *given: self._in_loop(lambda: value(*given))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.api, name, value)

    def __enter__(self) -> Self:
        self.thread.start()
        while not self.api.url:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join()
        self.loop.close()

    async def _run(self) -> None:
        async with self.api.served():
            await self.end.wait()

    def _in_loop(self, action: Callable[[], Any]) -> Any:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def act() -> None:
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - it is the test's, and told there
                done.set_exception(error)

        self.loop.call_soon_threadsafe(act)
        return done.result(60)  # a busy machine may give the thread a tenth of a core
