"""`/v1/responses`: runs in OpenAI's Responses API.

A stream can be resumed after any recorded event. It cannot retract numbered events: if the store
lost some, the stream ends with an error while the run goes on.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from diptych.core.codec import Record
from diptych.core.errors import InvalidRequest, RunNotFound
from diptych.http.bodies import json_response, json_router
from diptych.http.caller_calls import Part, part_of, run_of, start_or_continue
from diptych.http.errors import RunFailed, run_error_body
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import ASKED, Events, reply
from diptych.http.responses.items import input_items, page_of
from diptych.http.responses.request import ResponseBody, read_response_request
from diptych.http.responses.state import ResponseState, fed
from diptych.http.run_reader import RunReader, cancel_if_abandoned, result_for_caller
from diptych.http.run_request import ChatTerms
from diptych.http.sse_response import SseResponse
from diptych.net.sse import frame
from diptych.ports import Item, Notice

PATH = "/v1/responses"
Stream = Annotated[bool | None, Query(description="Whether the response comes as events.")]
StartingAfter = Annotated[
    int | None,
    Query(
        ge=0,
        le=10**15,
        description="With `stream`: the `sequence_number` of the last event that the caller has.",
    ),
]
Order = Annotated[Literal["asc", "desc"], Query(description="`desc`: the last item first.")]
After = Annotated[str | None, Query(description="The id of the item before the page.")]
Limit = Annotated[int, Query(ge=1, le=100, description="How many items a page has at most.")]
_EVENTS = Events(
    "With `stream`: each `data:` is an event of OpenAI's Responses API, and `event:` its `type`. "
    "`sequence_number` counts the recorded events, and is the same in every replay. "
    "`response.reasoning_text.delta` is live only, with the number of the event before it. If the "
    "stream cannot go on, an `error` is its last event.",
    'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":'
    '{"id":"run-1","object":"response","status":"queued"}}\n\n',
)


def response_routes(terms: ChatTerms, runs: GuardedRuns) -> APIRouter:
    """Return the routes of an agent's responses."""
    router = json_router()
    name = terms.name

    @router.post(PATH, **reply("Response", "The response.", 404, *ASKED, events=_EVENTS))
    async def create_response(request: Request, body: ResponseBody) -> Response:
        """Start a run and reply with its answer as a response; with `background` immediately."""
        run_request, warnings = await read_response_request(request, body, terms, runs)
        no_tools = body.tool_choice == "none"
        found = await start_or_continue(runs, run_request, has_no_tools=no_tools)
        reader = ResponseReader(runs, ResponseState(name, *found), warnings)
        on_disconnect = None
        if run_request.origin.cancels_on_disconnect:
            on_disconnect = partial(cancel_if_abandoned, runs, found.entry.run_id)
        if body.stream:
            frames, failure_frame = reader.frames(), reader.failure_frame
            return SseResponse(frames, reader.headers, on_disconnect, failure_frame=failure_frame)
        if body.background:
            return json_response(await reader.now(), headers=reader.headers)
        response = await result_for_caller(request.receive, reader.answered(), on_disconnect)
        return json_response(response, headers=reader.headers)

    @router.get(f"{PATH}/{{response_id}}", **reply("Response", "The response.", events=_EVENTS))
    async def read_response(
        response_id: str, stream: Stream = None, starting_after: StartingAfter = None
    ) -> Response:
        """Read any run as a response: its current state, or with `stream` its recorded, then live
        events.
        """
        reader = await _reader(response_id, runs, name)
        if not stream:
            return json_response(await reader.now(), headers=reader.headers)
        if starting_after is not None:
            await reader.catch_up(starting_after)
        on_disconnect = partial(cancel_if_abandoned, runs, run_of(response_id))
        frames, failure_frame = reader.frames(), reader.failure_frame
        return SseResponse(frames, reader.headers, on_disconnect, failure_frame=failure_frame)

    _add_other_routes(router, runs, name)
    return router


def _add_other_routes(router: APIRouter, runs: GuardedRuns, name: str) -> None:
    @router.get(f"{PATH}/{{response_id}}/input_items", **reply("InputItemList", "A page of items."))
    async def list_input_items(
        response_id: str, order: Order = "desc", after: After = None, limit: Limit = 20
    ) -> Response:
        """List a request's input items, without system messages.

        In an existing session, only new items.
        """
        reader = await _reader(response_id, runs, name)
        items = input_items(await runs.records(run_of(response_id)), reader.part)
        return json_response(page_of(items, order, after, limit), headers=reader.headers)

    @router.post(f"{PATH}/{{response_id}}/cancel", **reply("Response", "The response."))
    async def cancel_response(response_id: str) -> Response:
        """Abort a run, whichever replica executes it. An ended run is left unchanged."""
        entry = await runs.cancel(run_of(response_id))
        try:
            reader = await _reader(response_id, runs, name)
            return json_response(await reader.now(), headers=reader.headers)
        except RunNotFound:  # the right to cancel it is not that to read it
            state = ResponseState(name, entry, Part())
            headers = ResponseReader(runs, state).headers
            return json_response(state.response(), headers=headers)

    @router.delete(f"{PATH}/{{response_id}}", **reply("DeletedResponse", "It is forgotten.", 409))
    async def delete_response(response_id: str) -> dict[str, Any]:
        """Delete a run and its messages in the session. Refused while the run is active."""
        await runs.delete(run_of(response_id))
        return {"id": response_id, "object": "response", "deleted": True}


async def _reader(response_id: str, runs: GuardedRuns, name: str) -> "ResponseReader":
    return ResponseReader(runs, ResponseState(name, *await part_of(response_id, runs)))


class ResponseReader(RunReader):
    """Reads one part of a run as a response; see `RunReader`."""

    def __init__(
        self,
        runs: GuardedRuns,
        state: ResponseState,
        warnings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(runs, state.entry, warnings, state.part)
        self._state = state
        self._after = -1  # the number of the newest event that the caller has
        self._read_seq = 0  # of the newest record that was read for `catch_up`
        self._ready = b""  # frames that this gave

    async def now(self) -> dict[str, Any]:
        """Return the response as recorded."""
        return fed(self._state, await self._runs.records(self._run_id)).response()

    async def answered(self) -> dict[str, Any]:
        """Wait for the part's end and return the response. Raises `RunFailed`."""
        records, reasoning = await self.ended()
        return fed(self._state, records).response(reasoning)

    async def catch_up(self, after: int) -> None:
        """Skip events up to this number, which the caller has.

        Raises `InvalidRequest` if the response ended before it.
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
        """Yield the frames of the stream. Raises `RunFailed` if it cannot go on."""
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
        """Frame an error as a stream event that also has the fields of other errors."""
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
        """Return advice for callers whose sequence numbers are no longer valid."""
        return f"read it from its start, at {self._path}"

    @property
    def _path(self) -> str:
        return f"/v1/responses/{self._state.id}"

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
        """Raise `RunFailed` if the run ended before the event that the caller resumes from."""
        if self._after > self._state.last_number:
            message = f"this response has no recorded event {self._after}: {self._restart}"
            raise self.unreadable("answer_reset", message)

    def _check_kept(self, reset: Notice) -> None:
        """Raise `RunFailed` if the store has lost a record whose events were sent."""
        if cast("int", reset.fields["last_seq"]) < self._state.last_seq:
            message = f"the store lost events of this response: {self._restart}"
            raise self.unreadable("answer_reset", message)
