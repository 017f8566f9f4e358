"""The REST binding of A2A, at `/a2a/rest`; that of A2A 0.3 is at `/a2a/rest/v1`.

The routes are the SDK's, without its `Mount` for tenants, of which an agent has none: it stands at
the root, and would take every path that has two parts.
"""

from collections.abc import AsyncIterator
from typing import Any

import orjson
from a2a.server.routes import create_rest_routes
from a2a.types import GetTaskRequest, ListTasksRequest
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import (
    A2A_REASON_TO_ERROR,
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    InternalError,
    InvalidRequestError,
)
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from diptych.a2a.bindings import Endpoint, json_problem, name_extension
from diptych.a2a.handler import TaskHandler
from diptych.a2a.older import older_rest_routes
from diptych.a2a.parameters import read_query
from diptych.http.errors import STATUS_OF_CODE
from diptych.http.rest_errors import REST_PATH, status_name

_FIRST_ERROR = 400
_QUERIES: dict[str, type[ListTasksRequest | GetTaskRequest]] = {
    f"{REST_PATH}/tasks": ListTasksRequest,
    f"{REST_PATH}/tasks/{{id}}": GetTaskRequest,
    f"{REST_PATH}/v1/tasks/{{id}}": GetTaskRequest,
}
"""What the queries of these routes say."""


def rest_routes(handler: TaskHandler, shutdown_grace_period: float) -> list[Route]:
    """Give the routes of both versions."""
    newer = create_rest_routes(
        handler, path_prefix=REST_PATH, shutdown_grace_period=shutdown_grace_period
    )
    older = older_rest_routes(handler, REST_PATH, shutdown_grace_period)
    return [
        *(_route(route, is_older=True) for route in older),
        *(_route(route, is_older=False) for route in newer if isinstance(route, Route)),
    ]


def _route(route: Route, *, is_older: bool) -> Route:
    endpoint = route.endpoint
    if message := _QUERIES.get(route.path):
        endpoint = _queried(endpoint, message)
    endpoint = _answered(endpoint, is_older=is_older)
    return Route(route.path, endpoint, methods=list(route.methods or ()))


def _queried(endpoint: Endpoint, message: type[ListTasksRequest | GetTaskRequest]) -> Endpoint:
    """Read a query as JSON-RPC would read the same parameters."""

    async def answer(request: Request) -> Response:
        try:
            query = read_query(request.query_params, message())
        except A2AError as error:
            payload = build_rest_error_payload(error)
            return JSONResponse(payload, payload["error"]["code"])
        scope = {**request.scope, "query_string": query.encode()}
        response: Response = await endpoint(Request(scope, request.receive))
        return response

    return answer


def _answered(endpoint: Endpoint, *, is_older: bool) -> Endpoint:
    """Answer a body that is no JSON, for which the SDK has HTTP 500; give errors their status."""

    async def answer(request: Request) -> Response:
        if await request.body() and (problem := await json_problem(request)):
            return _error(build_rest_error_payload(InvalidRequestError(problem)), is_older=is_older)
        response: Response = await endpoint(request)
        if response.status_code >= _FIRST_ERROR:
            return _error(orjson.loads(response.body), is_older=is_older)
        name_extension(request, response, is_older=is_older)
        if isinstance(response, EventSourceResponse):
            response.body_iterator = _told(aiter(response.body_iterator), is_older=is_older)
        return response

    return answer


async def _told(events: AsyncIterator[Any], *, is_older: bool) -> AsyncIterator[Any]:
    """Tell the events of a stream; an error in it is as one before it would be."""
    async for event in events:
        if isinstance(event, ServerSentEvent) and event.event == "error":
            body = _error(orjson.loads(str(event.data)), is_older=is_older).body
            yield ServerSentEvent(data=bytes(body).decode(), event="error")
        else:
            yield event


def _error(body: dict[str, Any], *, is_older: bool) -> Response:
    """Answer with an error: one of ours with the status of its code, and `Retry-After`.

    A2A has no own errors for these, and its mapping would make 400 or 500 of them.

    Clients of A2A 0.3 look for its message, its type (Python) or its code over JSON-RPC
    (JavaScript) beside `error`.
    """
    error = body["error"]
    info: dict[str, Any] = next(iter(error.get("details", ())), {})
    about = info.get("metadata", {})
    if status := STATUS_OF_CODE.get(about.get("code")):
        error |= {"code": status, "status": status_name(status)}
    if is_older:
        kind = A2A_REASON_TO_ERROR.get(info.get("reason", ""), InternalError)
        code = JSON_RPC_ERROR_CODE_MAP[kind]
        body = {**body, "message": error["message"], "type": kind.__name__, "code": code}
    seconds = about.get("retryAfterSeconds")
    return JSONResponse(body, error["code"], {"Retry-After": seconds} if seconds else None)
