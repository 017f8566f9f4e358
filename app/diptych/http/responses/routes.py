"""`/v1/responses`: starts runs as responses; reads, follows and cancels any run as one."""

from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from diptych.core.errors import RunNotFound
from diptych.http.chat_terms import ChatTerms
from diptych.http.direct_route import DirectRoute
from diptych.http.disconnect import cancel_if_abandoned, result_for_caller
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import response_operations as operations
from diptych.http.responses.input_listing import input_items, page_of
from diptych.http.responses.reader import ResponseReader
from diptych.http.responses.request import read_response_request
from diptych.http.sse_response import SseResponse

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


def create_response_route(terms: ChatTerms, runs: GuardedRuns) -> DirectRoute:
    """Give the route that starts the runs of an agent."""

    async def create(request: Request) -> Response:
        asked = await read_response_request(request, terms, runs)
        entry = await runs.start(asked.run_request)
        reader = ResponseReader(runs, entry, terms.name, asked.warnings)
        on_disconnect = None
        if asked.run_request.origin.cancels_on_disconnect:
            on_disconnect = partial(cancel_if_abandoned, runs, entry.run_id)
        if asked.streams:
            frames, failure_frame = reader.frames(), reader.failure_frame
            return SseResponse(frames, reader.headers, on_disconnect, failure_frame=failure_frame)
        if asked.is_background:
            return _json(await reader.now(), reader)
        work = reader.answered()
        return _json(await result_for_caller(request.receive, work, on_disconnect), reader)

    return DirectRoute(PATH, create, methods=["POST"], **operations.CREATE_RESPONSE)


def response_routes(name: str, runs: GuardedRuns) -> APIRouter:
    """Give the routes of responses that exist; `name` is the agent's."""
    router = APIRouter()

    @router.get(f"{PATH}/{{run_id}}", **operations.READ_RESPONSE)
    async def read(
        run_id: str, stream: Stream = None, starting_after: StartingAfter = None
    ) -> Response:
        reader = ResponseReader(runs, await runs.entry(run_id), name)
        if not stream:
            return _json(await reader.now(), reader)
        if starting_after is not None:
            await reader.catch_up(starting_after)
        on_disconnect = partial(cancel_if_abandoned, runs, run_id)
        frames, failure_frame = reader.frames(), reader.failure_frame
        return SseResponse(frames, reader.headers, on_disconnect, failure_frame=failure_frame)

    @router.get(f"{PATH}/{{run_id}}/input_items", **operations.LIST_INPUT_ITEMS)
    async def list_input_items(
        run_id: str, order: Order = "desc", after: After = None, limit: Limit = 20
    ) -> Response:
        reader = ResponseReader(runs, await runs.entry(run_id), name)
        items = input_items(await runs.records(run_id))
        return _json(page_of(items, order, after, limit), reader)

    @router.post(f"{PATH}/{{run_id}}/cancel", **operations.CANCEL_RESPONSE)
    async def cancel(run_id: str) -> Response:
        reader = ResponseReader(runs, await runs.cancel(run_id), name)
        try:
            return _json(await reader.now(), reader)
        except RunNotFound:  # the right to cancel it is not that to read it
            return _json(reader.bare(), reader)

    @router.delete(f"{PATH}/{{run_id}}", **operations.DELETE_RESPONSE)
    async def delete(run_id: str) -> dict[str, Any]:
        await runs.delete(run_id)
        return {"id": run_id, "object": "response", "deleted": True}

    return router


def _json(view: dict[str, Any], reader: ResponseReader) -> Response:
    return Response(orjson.dumps(view), 200, reader.headers, "application/json")
