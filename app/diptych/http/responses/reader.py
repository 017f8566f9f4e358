"""Reads one run as a response: as it is now, when it has ended, or as a stream of events.

A stream can be taken up after any event that is on record. It has no event that takes numbered
ones back: one whose numbers the store has lost ends with an error, and its run goes on.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from diptych.core.codec import Record
from diptych.core.errors import InvalidRequest
from diptych.http.errors import RunFailed, run_error_body
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.responses.state import ResponseState, fed
from diptych.http.run_reader import RunReader
from diptych.net.sse import frame
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry


class ResponseReader(RunReader):
    """Reads one run, once, as a response; `model` is the agent's name. See `RunReader`."""

    def __init__(
        self,
        runs: GuardedRuns,
        entry: RunEntry,
        model: str,
        warnings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(runs, entry, warnings)
        self._state = ResponseState(entry, model)
        self._after = -1  # the number of the newest event that the caller has
        self._read_seq = 0  # of the newest record that was read for `catch_up`
        self._ready = b""  # frames that this gave

    async def now(self) -> dict[str, Any]:
        """Give the response as it is on record."""
        return fed(self._state, await self._runs.records(self._run_id)).response()

    def bare(self) -> dict[str, Any]:
        """Give what may be said of a response to who may not read it."""
        return self._state.response()

    async def answered(self) -> dict[str, Any]:
        """Wait for the run's end and give the whole response. Raises `RunFailed`."""
        records, reasoning = await self.ended()
        return fed(self._state, records).response(reasoning)

    async def catch_up(self, after: int) -> None:
        """Read what the caller knows, up to the event with this number.

        Raises `InvalidRequest` if the response has ended before it.
        """
        self._after = after
        for record in await self._runs.records(self._run_id):
            self._ready = self._record_frames(record)
            self._read_seq = record.seq
            if self._ready or self._state.is_over:
                break
        if self._state.is_over and after > self._state.last_number:
            raise InvalidRequest(
                f"starting_after: the last event of this response is {self._state.last_number}",
                param="starting_after",
                code="invalid_value",
            )

    async def frames(self) -> AsyncGenerator[bytes]:
        """Give the frames of the stream. Raises `RunFailed` if it cannot go on."""
        if self._ready:
            yield self._ready
        if self._state.is_over:
            return
        async with aclosing(self.batches(self._read_seq)) as batches:
            async for batch in batches:
                if content := self._batch_frames(batch):
                    yield content
                if self._state.is_over:
                    self._check_reached()
                    return
        raise self.handed_over()

    def failure_frame(self, error: RunFailed) -> bytes:
        """Frame why the stream cannot go on: as an event of it, and as errors are elsewhere."""
        event = {
            "type": "error",
            "sequence_number": max(0, self._state.last_number),
            "code": error.code,
            "message": error.message,
            "param": None,
            **run_error_body(error.code, error.message),
        }
        return frame(event, event="error")

    @property
    def advice(self) -> str:
        return f"read it at {self._path}, with stream=true and starting_after for what comes next"

    @property
    def _restart(self) -> str:
        """What to do where the numbers that the caller knows count no more."""
        return f"read it from its start, at {self._path}"

    @property
    def _path(self) -> str:
        return f"/v1/responses/{self._run_id}"

    def _batch_frames(self, batch: Sequence[Item]) -> bytes:
        frames: list[bytes] = []
        for item in batch:
            if isinstance(item, Record):
                frames.append(self._record_frames(item))
                if self._state.is_over:
                    break
            elif item.type == "reasoning":
                event = self._state.live_reasoning(str(item.fields["content"]))
                frames.append(frame(event, event=event["type"]))
            elif item.type == "reset":
                self._check_kept(item)
        return b"".join(frames)

    def _record_frames(self, record: Record) -> bytes:
        """Frame the events of a record that the caller does not have."""
        return b"".join(
            frame(event, event=event["type"])
            for event in self._state.feed(record)
            if event["sequence_number"] > self._after
        )

    def _check_reached(self) -> None:
        """Raise `RunFailed` if the run has ended before the event that the caller goes on from."""
        if self._after > self._state.last_number:
            message = f"this response has no event {self._after} on record: {self._restart}"
            raise self.unreadable("answer_reset", message)

    def _check_kept(self, reset: Notice) -> None:
        """Raise `RunFailed` if the store has lost a record that gave events."""
        if cast("int", reset.fields["last_seq"]) < self._state.last_seq:
            message = f"the store lost what was told of this response: {self._restart}"
            raise self.unreadable("answer_reset", message)
