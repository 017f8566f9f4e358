"""A2A 0.3, for older clients: the SDK turns its requests into those of 1.0, and replies back.

It answers what it cannot turn with the text of an exception, or with HTTP 500; over REST, it breaks
a stream that it has opened. Here these are errors of the request. All else is as in 1.0.
"""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.compat.v0_3.request_handler import RequestHandler03
from a2a.compat.v0_3.rest_adapter import REST03Adapter
from a2a.compat.v0_3.rest_handler import REST03Handler
from a2a.utils import json_utils
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, InvalidParamsError
from google.protobuf.json_format import ParseError
from pydantic import BaseModel, ValidationError
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from diptych.a2a.bindings import Endpoint
from diptych.a2a.handler import TaskHandler

_MAX_TEXT = 300  # characters of what is said about a wrong form
_INVALID_REQUEST, _INVALID_PARAMS = -32600, -32602
_P = ParamSpec("_P")
_R = TypeVar("_R")
_logger = logging.getLogger(__name__)


@contextmanager
def _reading() -> Iterator[None]:
    """Turn the failure to turn a request into one of 1.0 into an error of A2A."""
    try:
        yield
    except A2AError:
        raise
    except ValidationError as error:
        raise InvalidParamsError(_form_problem(error)) from error
    except ParseError as error:  # names the field
        raise InvalidParamsError(str(error)[:_MAX_TEXT]) from error
    except Exception as error:
        _logger.info("a request of A2A 0.3 was not turned into one of 1.0", exc_info=error)
        raise InvalidParamsError("the request does not have the form of A2A 0.3") from error


def _form_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"{where}: {first['msg']}"[:_MAX_TEXT]


def _checked(
    method: Callable[_P, Coroutine[Any, Any, _R]],
) -> Callable[_P, Coroutine[Any, Any, _R]]:
    async def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _reading():
            return await method(*args, **kwargs)

    return checked


def _checked_stream(
    method: Callable[_P, AsyncIterable[_R]],
) -> Callable[_P, AsyncIterator[_R]]:
    async def checked(*args: _P.args, **kwargs: _P.kwargs) -> AsyncIterator[_R]:
        with _reading():
            async for event in method(*args, **kwargs):
                yield event

    return checked


class _RpcMethods(RequestHandler03):
    on_message_send = _checked(RequestHandler03.on_message_send)
    on_message_send_stream = _checked_stream(RequestHandler03.on_message_send_stream)
    on_get_task = _checked(RequestHandler03.on_get_task)


class _RestMethods(REST03Handler):
    on_message_send = _checked(REST03Handler.on_message_send)
    on_message_send_stream = _checked_stream(REST03Handler.on_message_send_stream)
    on_get_task = _checked(REST03Handler.on_get_task)
    on_subscribe_to_task = _checked_stream(REST03Handler.on_subscribe_to_task)
    set_push_notification = _checked(REST03Handler.set_push_notification)


class OlderRpc:
    """The methods that A2A 0.3 has over JSON-RPC."""

    def __init__(self, handler: TaskHandler, shutdown_grace_period: float) -> None:
        self._adapter = JSONRPC03Adapter(handler, shutdown_grace_period=shutdown_grace_period)
        self._adapter.handler = _RpcMethods(handler)

    def takes(self, request: Request, body: object) -> bool:
        """Say whether a request is one of 0.x; so is one that names no version (1.0, 3.6.2)."""
        version = request.headers.get(VERSION_HEADER) or "0.3"
        if not isinstance(body, dict) or not version.startswith("0."):
            return False
        method = body.get("method")
        return isinstance(method, str) and self._adapter.supports_method(method)

    async def answer(self, request: Request, body: dict[str, Any]) -> Response:
        """Answer a request of 0.3."""
        sent_id, method = body.get("id"), body["method"]
        request_id = sent_id if type(sent_id) in (str, int) else None
        model = cast("type[BaseModel]", self._adapter.METHOD_TO_MODEL[method])
        try:
            model.model_validate({**body, "id": request_id})  # it takes a bool for a number
        except ValidationError as error:
            is_params = error.errors()[0]["loc"][:1] == ("params",)
            code = _INVALID_PARAMS if is_params else _INVALID_REQUEST
            content = {"code": code, "message": _form_problem(error)}
            return JSONResponse({"jsonrpc": "2.0", "id": request_id, "error": content})
        response: Response = await self._adapter.handle_request(request_id, method, body, request)
        return response


def older_rest_routes(
    handler: TaskHandler, prefix: str, shutdown_grace_period: float
) -> list[Route]:
    """Give the routes that A2A 0.3 has over REST, below `prefix`."""
    adapter = REST03Adapter(handler, shutdown_grace_period=shutdown_grace_period)
    adapter.handler = _RestMethods(handler)
    return [
        Route(f"{prefix}{path}", _opened(endpoint), methods=[method])
        for (path, method), endpoint in adapter.routes().items()
    ]


def _opened(endpoint: Endpoint) -> Endpoint:
    """Answer a stream that fails before its first event with an error, as the SDK does in 1.0."""

    async def answer(request: Request) -> Response:
        response: Response = await endpoint(request)
        if not isinstance(response, EventSourceResponse):
            return response
        events = aiter(response.body_iterator)
        try:
            first = await anext(events)
        except A2AError as error:
            payload = build_rest_error_payload(error)
            return JSONResponse(payload, payload["error"]["code"])
        response.body_iterator = _from(first, events)
        return response

    return answer


async def _from(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:  # noqa: ANN401 - SSE
    yield first
    try:
        async for event in rest:
            yield event
    except A2AError as error:
        data = json_utils.dumps(build_rest_error_payload(error))
        yield ServerSentEvent(data=data, event="error")
