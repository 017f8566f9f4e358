"""Reads one run for a waiting caller, and handles disconnects.

`on_disconnect: cancel` is stored in the run's first record, so it holds for every connection that
reads the run. The run goes on while this process has another reader of it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from diptych.core.codec import Record, is_terminal
from diptych.core.errors import RequestError, StoreError
from diptych.http.caller_calls import Part
from diptych.http.errors import RunFailed, store_failure
from diptych.http.guarded_runs import GuardedRuns
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry
from diptych.runs.answers import collect

_CALLS = frozenset({"tool_call", "delegation_request"})
Result = TypeVar("Result")
_logger = logging.getLogger(__name__)


class RunReader:
    """Reads one part of a run, by default its first.

    `headers` name the run in the response, beside `warnings`. Failures are `RunFailed`, which says
    where to read on. Reasoning is not logged, so only text that arrives while reading is known.
    """

    def __init__(
        self,
        runs: GuardedRuns,
        entry: RunEntry,
        warnings: Mapping[str, str] | None = None,
        part: Part | None = None,
    ) -> None:
        self.part = part or Part()
        self.headers = {
            "X-Session-ID": entry.session_id,
            "X-Run-ID": entry.run_id,
            **(warnings or {}),
        }
        self._runs = runs
        self._run_id = entry.run_id
        self._has_made_calls = self.part.after > 0

    async def ended(self) -> tuple[list[Record], str]:
        """Wait for the part's end; return its records and its reasoning. Raises `RunFailed`."""
        records: list[Record] = []
        reasoning: list[str] = []
        async for batch in self.batches():
            items, end = self.up_to_end(batch)
            for item in items:
                collect(records, item, self.part.after)
                if isinstance(item, Notice) and item.type == "reasoning":
                    reasoning.append(str(item.fields["content"]))
            if end:
                self.raise_if_failed(end)
                return records, "".join(reasoning)
        raise self.handed_over()

    async def batches(self, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Subscribe to the part after a seq. Raises `RunFailed` if it cannot be read on."""
        after = max(after, self.part.after)
        try:
            async with aclosing(await self._runs.subscribe(self._run_id, after)) as batches:
                async for batch in batches:
                    yield batch
        except StoreError as error:
            _logger.error("the store failed under a reply: %s", error)
            code, message = store_failure(error)
            raise self.unreadable(code, f"{message}: {self.advice}") from error
        except RequestError as error:
            raise self.unreadable(error.code, error.message) from error

    def up_to_end(self, batch: Sequence[Item]) -> tuple[Sequence[Item], Record | None]:
        """Return a batch's items up to the part's end, and the last record if that is among them.

        Notes whether a call of the run may have started.
        """
        for n, item in enumerate(batch, 1):
            if not isinstance(item, Record):
                if item.type == "reset":
                    self.part.forget(cast("int", item.fields["last_seq"]))
                continue
            self._has_made_calls |= item.event_type in _CALLS
            self.part.feed(item)
            if self.part.waiting or is_terminal(item):
                return batch[:n], item
        return batch, None

    def raise_if_failed(self, end: Record) -> None:
        """Raise `RunFailed` if a run has ended without an answer."""
        if failed := failure(end):
            raise RunFailed(*failed, has_made_calls=self._has_made_calls, headers=self.headers)

    def handed_over(self) -> RunFailed:
        """Return the error for a stream that ends because this process is shutting down."""
        message = f"this process is leaving, and the run goes on: {self.advice}"
        return self.unreadable("handed_over", message)

    def unreadable(self, code: str, message: str) -> RunFailed:
        """Return the error for a run that cannot be read further."""
        return RunFailed(code, message, has_made_calls=True, headers=self.headers)

    @property
    def advice(self) -> str:
        path = f"/v1/runs/{self._run_id}"
        return f"read the answer at {path}, or follow {path}/events after the last id"


def failure(end: Record) -> tuple[str, str] | None:
    """Return code and message of a failed or aborted run; None for an answered one."""
    match end.event_type:
        case "failed":
            return str(end.metadata["code"]), str(end.content)
        case "aborted":
            return "aborted", f"the run was aborted: {end.content}"
        case _:
            return None


# Hanging up


async def disconnected(receive: Receive) -> None:
    """Wait until the caller hangs up. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def result_for_caller(
    receive: Receive,
    work: Coroutine[Any, Any, Result],
    on_disconnect: Callable[[], Awaitable[None]] | None,
) -> Result:
    """Await the work; on a disconnect call `on_disconnect` and raise `ClientDisconnect`.

    Without `on_disconnect` the work goes on when the caller disconnects.
    """
    if on_disconnect is None:
        return await work
    task, listener = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait([task, listener], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        task.cancel()
        listener.cancel()
        await asyncio.wait([task, listener])
    await on_disconnect()
    raise ClientDisconnect


async def cancel_if_abandoned(runs: GuardedRuns, run_id: str) -> None:
    """Cancel a run after a disconnect, if its request asked for that and no reader is left."""
    if runs.has_subscribers(run_id):
        return
    try:
        async with aclosing(await runs.subscribe(run_id)) as batches:
            first, *_ = await anext(batches)  # no more than one batch is read
        if isinstance(first, Record) and first.metadata.get("on_disconnect") == "cancel":
            await runs.cancel(run_id, "the client disconnected")
    except (RequestError, StoreError) as error:
        _logger.warning("run %s could not be cancelled when its client had gone: %s", run_id, error)
