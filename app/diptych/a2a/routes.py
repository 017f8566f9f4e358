"""The routes of A2A: the agent card, JSON-RPC at `/a2a`, and REST at `/a2a/rest`.

Both bindings are the SDK's, in 1.0 and 0.3. Here bodies are checked before the SDK reads them, and
errors over REST get the status of their code.
"""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import orjson
from a2a.compat.v0_3.extension_headers import LEGACY_HTTP_EXTENSION_HEADER
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.types import TaskState
from a2a.utils import json_utils
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import (
    A2A_REASON_TO_ERROR,
    JSON_RPC_ERROR_CODE_MAP,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
)
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from diptych.a2a import extension
from diptych.a2a.card import RPC_PATH, base_url, card_routes
from diptych.a2a.handler import BASE, TaskHandler
from diptych.a2a.push import PushSender
from diptych.a2a.replies import Replies
from diptych.http.agent_profile import AgentProfile
from diptych.http.errors import REST_PATH, STATUS_OF_CODE, status_name
from diptych.http.guarded_runs import GuardedRuns
from diptych.net.strict_reading import read_strictly

SHUTDOWN_GRACE = 4.0  # seconds; the server's own is 5
PARSE_ERROR = -32700

_MAX_VALUES = 5_000
"""In a body: protobuf takes 20 to 40 µs for each, in which no other request is served."""
_UNKNOWN_STATE = -1
_FIRST_ERROR = 400
_UNREADABLE = "unknown exception"  # says the SDK over REST; errors of our methods have their words


def a2a_routes(
    runs: GuardedRuns,
    profile: AgentProfile,
    pushes: PushSender | None = None,
    *,
    replies: Replies | None = None,
    shutdown_grace_period: float = SHUTDOWN_GRACE,
) -> list[Route]:
    """Return the routes of A2A.

    Without `pushes` there are no push notifications; without `replies` clients cannot answer
    waiting calls.

    `shutdown_grace_period` is how many seconds open streams get to end when the server stops; it
    must be less than the server's own graceful timeout.
    """
    handler, contexts = TaskHandler(runs, profile, pushes, replies), _Contexts(profile)
    (rpc,) = create_jsonrpc_routes(
        handler,
        RPC_PATH,
        context_builder=contexts,
        enable_v0_3_compat=True,
        shutdown_grace_period=shutdown_grace_period,
    )
    rest = create_rest_routes(
        handler,
        path_prefix=REST_PATH,
        context_builder=contexts,
        enable_v0_3_compat=True,
        shutdown_grace_period=shutdown_grace_period,
    )
    return [
        *card_routes(profile),
        *(_rpc_route(path, rpc) for path in (RPC_PATH, f"{RPC_PATH}/")),
        # without the SDK's mount for tenants, which would take every path that has two parts
        *(_rest_route(route) for route in rest if isinstance(route, Route)),
    ]


class _Contexts(DefaultServerCallContextBuilder):
    """Adds the agent's base URL to the contexts of calls."""

    def __init__(self, profile: AgentProfile) -> None:
        self._profile = profile

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[BASE] = base_url(self._profile, request)
        return context


def _rpc_route(path: str, rpc: Route) -> Route:
    async def answer(request: Request) -> Response:
        if problem := await _body_problem(request):
            error = {"code": PARSE_ERROR, "message": problem}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})
        match await request.json():  # the SDK reads this very object
            case {"method": "ListTasks", "params": {"status": given} as params}:
                params["status"] = _state_number(given)
        response: Response = await rpc.endpoint(request)
        _name_extension(request, response)
        return response

    return Route(path, answer, methods=["POST"])


def _rest_route(route: Route) -> Route:
    is_older = route.path.startswith(f"{REST_PATH}/v1/")

    async def answer(request: Request) -> Response:
        if await request.body() and (problem := await _body_problem(request)):
            return _rest_error(build_rest_error_payload(InvalidRequestError(problem)), is_older)
        response: Response = await route.endpoint(_with_state_number(request))
        if is_older and isinstance(response, EventSourceResponse):
            response = await _begun(response)
        if response.status_code >= _FIRST_ERROR:
            return _rest_error(orjson.loads(response.body), is_older)
        if not isinstance(response, EventSourceResponse):
            response.headers["Content-Type"] = "application/json"  # as 11.1 says
        _name_extension(request, response)
        return response

    return Route(route.path, answer, methods=list(route.methods or ()))


async def _body_problem(request: Request) -> str | None:
    """Return why a body is not JSON that all parsers read alike, or None."""
    content = await request.body()
    try:
        content.decode()  # Python's reader takes UTF-16, too
        body = await request.json()
        if b"\\u" in content:  # half a surrogate pair cannot be echoed as UTF-8
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        return "the body is nested too deeply"
    except ValueError:
        return "the body is not JSON in UTF-8"
    if _has_many_values(content, body):
        return f"the body holds more than {_MAX_VALUES:,} values; send fewer"
    try:
        await read_strictly(content)
    except ValueError as error:
        return f"the body is not valid JSON: {error}"
    return None


def _has_many_values(content: bytes, body: object) -> bool:
    marks = content.count(b",") + content.count(b":") + content.count(b"[")
    if marks < _MAX_VALUES:  # one is before each value, but the first
        return False
    count, rest = 0, [body]
    while rest and count <= _MAX_VALUES:
        value = rest.pop()
        count += 1
        if isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return count > _MAX_VALUES


def _with_state_number(request: Request) -> Request:
    """Return the request with the task state in its query replaced by its number."""
    query = request.query_params
    if "status" not in query:
        return request
    changed = urlencode({**query, "status": _state_number(query["status"])})
    return Request({**request.scope, "query_string": changed.encode()}, request.receive)


def _state_number(given: object) -> object:
    """Return the number of a state named `working` or `TASK_STATE_WORKING`; the specification has
    both (11.5). protobuf ignores unknown names, which would list all tasks.
    """
    if not isinstance(given, str) or given.isdigit():
        return given
    name = given.upper().replace("-", "_").removeprefix("TASK_STATE_")
    return dict(TaskState.items()).get(f"TASK_STATE_{name}", _UNKNOWN_STATE)


def _name_extension(request: Request, response: Response) -> None:
    """Name our extension in the reply if the caller activated it (specification, 4.6)."""
    for name in (HTTP_EXTENSION_HEADER, LEGACY_HTTP_EXTENSION_HEADER):
        if extension.URI in get_requested_extensions(request.headers.getlist(name)):
            response.headers[name] = extension.URI


async def _begun(response: EventSourceResponse) -> Response:
    """Wait for the first event, so that an early failure is an error response, not a broken
    stream.
    """
    events = aiter(response.body_iterator)
    try:
        first = await anext(events)
    except Exception as error:  # noqa: BLE001 - the SDK answers any error so
        payload = build_rest_error_payload(error)
        return JSONResponse(payload, payload["error"]["code"])
    response.body_iterator = _from(first, events)
    return response


async def _from(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:  # noqa: ANN401 - SSE
    yield first
    try:
        async for event in rest:
            yield event
    except Exception as error:  # noqa: BLE001 - as the SDK does in 1.0
        yield ServerSentEvent(json_utils.dumps(build_rest_error_payload(error)), event="error")


def _rest_error(body: dict[str, Any], is_older: bool) -> Response:
    """Answer with an error and, for our codes, their status and `Retry-After`.

    A2A 0.3 clients read the message, type (Python) or JSON-RPC code (JavaScript) beside `error`.
    """
    error = body["error"]
    if error["message"] == _UNREADABLE:
        body = build_rest_error_payload(InvalidParamsError("the request has not the form of A2A"))
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
