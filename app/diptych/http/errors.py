"""HTTP statuses of error codes, and the four error formats.

`/v1/*` uses OpenAI's, `/a2a` JSON-RPC's, `/a2a/rest/*` A2A's REST binding (A2A 1.0, 11.6), all
others problem+json (RFC 9457).
"""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from diptych.core.errors import (
    DiptychError,
    InvalidRequest,
    NotAnswered,
    Overloaded,
    RequestError,
    StoreError,
    StoreFull,
)
from diptych.http.agent_profile import MCP_PATH
from diptych.http.lazy_routes import LazyRoutes
from diptych.net.redaction import SECRETS

REST_PATH = "/a2a/rest"
REQUEST_ID = "diptych.request_id"  # of a scope
_logger = logging.getLogger(__name__)

_FINAL_CODES = frozenset(
    {
        "aborted",
        "invalid_output",
        "answer_not_given",
        "empty_answer",
        "stuck",
        "budget_exhausted",
    }
)
"""Clients must not repeat these runs: they have tried again themselves, or somebody ended them."""
STATUS_OF_CODE = {
    "invalid_signature": 401,
    "forbidden": 403,
    "run_not_found": 404,
    "too_many_runs": 429,
    "too_much_at_once": 429,
    "overloaded": 503,
    "secret_missing": 503,
    "session_busy": 409,
    "run_over": 409,
    "too_many_messages": 409,
    "not_resumable": 409,
    "already_decided": 409,
    "decision_refused": 403,
    "agent_unavailable": 503,
    "approval_not_found": 404,
    "call_not_found": 404,
    "input_not_found": 404,
    "already_answered": 409,
    "invalid_arguments": 422,
    "model_not_found": 404,
    "model_without_price": 403,  # of a ModelAPI's proxy
    "trigger_not_found": 404,
    "login_not_found": 404,
    "sign_in_refused": 409,
    "session_not_found": 404,
    "previous_response_not_found": 404,
    "item_not_found": 404,
    "unsupported_media_type": 415,
    "unsupported_content_encoding": 415,
    "not_implemented": 501,
    "body_too_large": 413,
    "foreign_host": 421,
    "foreign_origin": 403,
    "idempotency_mismatch": 422,
    # Codes of failed runs, and of runs that cannot be read. Any other is the model's: 502.
    "context_too_long": 400,
    "model_timeout": 504,
    "deadline_exceeded": 504,
    "out_of_memory": 503,
    "internal_error": 500,
    "too_many_owners": 500,
    "stuck": 500,
    "budget_exhausted": 429,  # as OpenAI's insufficient_quota
    "budget_unavailable": 503,
    "aborted": 409,
    "not_answered": 503,
    "store_full": 503,
    "store_away": 503,
    "store_lost": 503,
    "handed_over": 503,
    "run_lost": 410,
}
_MODEL_FAILED = 502
_REQUEST_KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
"""The `type` of an error, by its status."""
_RETRY_AFTER = {"store_away": "2", "not_answered": "2", "store_full": "10", "handed_over": "1"}
_RPC_INVALID_REQUEST, _RPC_INTERNAL_ERROR = -32600, -32603  # JSON-RPC 2.0, section 5.1
_A2A_CONTENT_TYPE = -32005  # ContentTypeNotSupportedError (A2A, 5.4)
_RPC_PATHS = ("/a2a", "/a2a/", MCP_PATH)
_METHODS = ("DELETE", "GET", "HEAD", "POST")
_JSON = "application/json"
_SERVER_ERRORS = range(500, 600)
_REST_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "OUT_OF_RANGE",
    415: "INVALID_ARGUMENT",
    421: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


class RunFailed(DiptychError):
    """A run ended without an answer or cannot be read further.

    `code` says why. With `has_made_calls` clients must not retry automatically, as OpenAI's do on
    5xx and 409: tools would run again. `headers` name the run.
    """

    def __init__(
        self, code: str, message: str, *, has_made_calls: bool, headers: Mapping[str, str]
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.has_made_calls = has_made_calls
        self.headers = dict(headers)


# Bodies


def error_body(
    message: str, kind: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Return an error in OpenAI's form, redacted."""
    return {
        "error": {"message": SECRETS.redact(message), "type": kind, "param": param, "code": code}
    }


def run_error_body(code: str, message: str) -> dict[str, Any]:
    """Return the error for a run without an answer."""
    kinds = {
        "aborted": "aborted",
        "context_too_long": "invalid_request_error",
        "budget_exhausted": "insufficient_quota",
    }
    return error_body(message, kinds.get(code, "server_error"), code=code)


def request_error_body(error: RequestError) -> dict[str, Any]:
    """Return the error for an invalid request."""
    kind = _REQUEST_KINDS.get(_status_of(error), "invalid_request_error")
    return error_body(error.message, kind, code=error.code, param=error.param)


def store_failure(error: StoreError) -> tuple[str, str]:
    """Return code and message for a store error; library messages are not shown to callers."""
    if isinstance(error, StoreFull):
        return "store_full", "the store of runs has no room left now"
    if isinstance(error, NotAnswered):
        return "not_answered", str(error)
    return "store_away", "the record of runs cannot be reached now"


def error_response(
    path: str, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error response in the path's format; `body` is in OpenAI's."""
    error = body["error"]
    reason = str(error["code"] or HTTPStatus(status).phrase).upper()
    media_type = _JSON
    if path in _RPC_PATHS:
        body = _rpc_error(path, status, error["message"], reason)
    elif is_rest_path(path):
        body = _rest_error(status, error["message"], reason)
    elif not path.startswith("/v1/"):
        media_type = "application/problem+json"
        title = HTTPStatus(status).phrase
        body = {
            "type": "about:blank",
            "title": title,
            "status": status,
            "detail": error["message"],
            **{name: error[name] for name in ("code", "param") if error[name]},
        }
    return Response(orjson.dumps(body), status, headers, media_type)


def request_error_response(
    path: str, error: RequestError, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response for an invalid request, or one that there is no room for."""
    if isinstance(error, Overloaded):
        headers = {**(headers or {}), "Retry-After": str(error.retry_after)}
    return error_response(path, _status_of(error), request_error_body(error), headers)


def _status_of(error: RequestError) -> int:
    return STATUS_OF_CODE.get(error.code, 400)


def is_rest_path(path: str) -> bool:
    """Whether a path belongs to A2A's REST binding."""
    return path == REST_PATH or path.startswith(f"{REST_PATH}/")


def status_name(status: int) -> str:
    """Return the `google.rpc.Code` name for an HTTP status."""
    return _REST_STATUS.get(status, "UNKNOWN")


def _rest_error(status: int, message: str, reason: str) -> dict[str, Any]:
    details = [{**_error_info(reason), "metadata": {}}]
    name = status_name(status)
    return {"error": {"code": status, "status": name, "message": message, "details": details}}


def _rpc_error(path: str, status: int, message: str, reason: str) -> dict[str, Any]:
    """Return a JSON-RPC error with a null id, as the request was not parsed."""
    is_ours = status in _SERVER_ERRORS or status == HTTPStatus.TOO_MANY_REQUESTS
    code = _RPC_INTERNAL_ERROR if is_ours else _RPC_INVALID_REQUEST
    if status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE and path != MCP_PATH:
        code = _A2A_CONTENT_TYPE
    error = {"code": code, "message": message, "data": [_error_info(reason)]}
    return {"jsonrpc": "2.0", "id": None, "error": error}


def _error_info(reason: str) -> dict[str, Any]:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": "diptych.dev"}


# What pydantic finds


def first_problem(problems: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Describe pydantic's first error in one sentence, without repeating the input."""
    problem = max(problems, key=_closeness) if _is_union(problems) else problems[0]
    path = _path(problem["loc"])
    if path == "body":
        return InvalidRequest("the body must be a JSON object", code="invalid_json")
    match problem["type"]:
        case "missing":
            return InvalidRequest(f"{path} is missing", param=path, code="missing_required_field")
        case "extra_forbidden":
            return InvalidRequest(f"{path} is not known here", param=path, code="unknown_parameter")
        case "too_long":
            most = problem["ctx"]["max_length"]
            advice = "; send fewer, or continue a session" if path == "messages" else "; send fewer"
            message = f"{path} has more than {most} items{advice}"
            return InvalidRequest(message, param=path, code="array_above_max_length")
        case "literal_error":
            expected = problem["ctx"]["expected"]
            return InvalidRequest(f"{path} must be {expected}", param=path, code="invalid_value")
        case "too_short" | "string_too_short":
            return InvalidRequest(f"{path} is empty", param=path, code="invalid_type")
        case "model_type" | "model_attributes_type":
            return InvalidRequest(f"{path} must be an object", param=path, code="invalid_type")
        case kind:
            is_bound = kind in {"greater_than_equal", "less_than_equal"}
            code = "invalid_value" if is_bound else "invalid_type"
            message = str(problem["msg"])
            text = f"{path}: {message[0].lower()}{message[1:]}"
            text = text.replace(": input should ", " must ", 1)
            return InvalidRequest(text, param=path, code=code)


def _is_union(problems: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all errors are about one value and the members of a union."""
    locations = [problem["loc"] for problem in problems]
    depth = 1 if all(isinstance(step, str) for loc in locations for step in loc) else 3
    return len(problems) > 1 and len({loc[:depth] for loc in locations}) == 1


def _closeness(problem: Mapping[str, Any]) -> tuple[int, bool]:
    """Sort key for the union member that fits best: deepest error first, then matching type."""
    return len(problem["loc"]), not str(problem["type"]).endswith("_type")


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "ContentPart"):  # a union's members
            path += f".{step}" if path else step
    return path or "body"


# Handlers


def add_error_handlers(app: Starlette) -> None:
    """Register handlers that answer every error in the path's format.

    They are coroutines: Starlette runs plain functions in a thread.
    """
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(RunFailed, _on_run_failed)
    app.add_exception_handler(StoreError, _on_store_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return request_error_response(request.url.path, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Answer a validation error of a body or parameter."""
    assert isinstance(error, RequestValidationError)
    (place, *_), *_ = (problem["loc"] for problem in error.errors())
    problem = first_problem([{**p, "loc": p["loc"][1:]} for p in error.errors()])
    if place == "query":
        message = problem.message.partition(", unable")[0]
        problem = InvalidRequest(message, param=problem.param, code="invalid_value")
    return await _on_request_error(request, problem)


async def _on_run_failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RunFailed)
    status = STATUS_OF_CODE.get(error.code, _MODEL_FAILED)
    headers = error.headers
    if error.code in _RETRY_AFTER:
        headers = {**headers, "Retry-After": _RETRY_AFTER[error.code]}
    if error.has_made_calls or error.code in _FINAL_CODES:
        headers = {**headers, "x-should-retry": "false"}
    body = run_error_body(error.code, error.message)
    return error_response(request.url.path, status, body, headers)


async def _on_store_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    code, message = store_failure(error)
    what = "a run's owner did not answer" if isinstance(error, NotAnswered) else "the store failed"
    _logger.error("%s: %s", what, error)
    headers = {"Retry-After": _RETRY_AFTER[code]}
    return error_response(request.url.path, 503, run_error_body(code, message), headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.method} is not possible at {request.url.path}",
    }.get(error.status_code, str(error.detail))
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    body = error_body(message, "invalid_request_error", code=code)
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods_of(request)):
        headers = {"Allow": methods}
    return error_response(request.url.path, error.status_code, body, headers)


def _methods_of(request: Request) -> str:
    """Return the allowed methods of all routes of a path.

    Starlette returns the first route's only. Lazy routes answer for themselves.
    """
    routes = request.app.router.routes
    if any(isinstance(r, LazyRoutes) and r.matches(request.scope)[0] is Match.FULL for r in routes):
        return ""
    return ", ".join(
        method
        for method in _METHODS
        if any(r.matches({**request.scope, "method": method})[0] is Match.FULL for r in routes)
    )


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """End a request whose caller hung up; nobody reads the answer."""
    del request, error
    return Response(status_code=400)


async def _on_bug(request: Request, error: Exception) -> Response:
    _logger.error("request %s broke", request.scope.get(REQUEST_ID), exc_info=error)
    body = error_body("the agent failed inside", "server_error", code="internal_error")
    return error_response(request.url.path, 500, body)
