"""Reads one run for a caller who waits for its answer, whatever form that is then written in.

What goes wrong meanwhile is a `RunFailed`, which names the run and says where to read on.
"""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from diptych.core.codec import Record, is_terminal
from diptych.core.errors import RequestError, StoreError
from diptych.http.errors import RunFailed, store_failure
from diptych.http.guarded_runs import GuardedRuns
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry
from diptych.runs.answers import collect

_CALLS = frozenset({"tool_call", "delegation_request"})
_logger = logging.getLogger(__name__)


class RunReader:
    """Reads one run, once. `headers` name the run in the response, beside `warnings`.

    A model's reasoning is never on record: it is told as far as it was heard live.
    """

    def __init__(
        self, runs: GuardedRuns, entry: RunEntry, warnings: Mapping[str, str] | None = None
    ) -> None:
        self.headers = {
            "X-Session-ID": entry.session_id,
            "X-Run-ID": entry.run_id,
            **(warnings or {}),
        }
        self._runs = runs
        self._run_id = entry.run_id
        self._has_made_calls = False

    async def ended(self) -> tuple[list[Record], str]:
        """Wait for the run's answer; give its records and its reasoning. Raises `RunFailed`."""
        records: list[Record] = []
        reasoning: list[str] = []
        async for batch in self.batches():
            for item in batch:
                collect(records, item)
                self.note_call(item)
                if isinstance(item, Notice) and item.type == "reasoning":
                    reasoning.append(str(item.fields["content"]))
        if not (records and is_terminal(records[-1])):
            raise self.handed_over()
        self.raise_if_failed(records[-1])
        return records, "".join(reasoning)

    async def batches(self, *after: int) -> AsyncGenerator[Sequence[Item]]:
        """Subscribe to the run, from after a seq. Raises `RunFailed` if it cannot be read on."""
        try:
            async with aclosing(await self._runs.subscribe(self._run_id, *after)) as batches:
                async for batch in batches:
                    yield batch
        except StoreError as error:
            _logger.error("the store failed under a reply: %s", error)
            code, message = store_failure(error)
            raise self.unreadable(code, f"{message}: {self.advice}") from error
        except RequestError as error:
            raise self.unreadable(error.code, error.message) from error

    def note_call(self, item: Item) -> None:
        """Note whether a call of the run may have started."""
        if isinstance(item, Record) and item.event_type in _CALLS:
            self._has_made_calls = True

    def raise_if_failed(self, end: Record) -> None:
        """Raise `RunFailed` if a run has ended without an answer."""
        if failed := failure(end):
            raise RunFailed(*failed, has_made_calls=self._has_made_calls, headers=self.headers)

    def handed_over(self) -> RunFailed:
        """Give the error of a stream that ends before its run, as this process is leaving."""
        message = f"this process is leaving, and the run goes on: {self.advice}"
        return self.unreadable("handed_over", message)

    def unreadable(self, code: str, message: str) -> RunFailed:
        """Give the error of a run that cannot be read further here."""
        return RunFailed(code, message, has_made_calls=True, headers=self.headers)

    @property
    def advice(self) -> str:
        path = f"/v1/runs/{self._run_id}"
        return f"read the answer at {path}, or follow {path}/events after the last id"


def failure(end: Record) -> tuple[str, str] | None:
    """Give code and message of a run that failed or was aborted; None if it gave an answer."""
    match end.event_type:
        case "failed":
            return str(end.metadata["code"]), str(end.content)
        case "aborted":
            return "aborted", f"the run was aborted: {end.content}"
        case _:
            return None
