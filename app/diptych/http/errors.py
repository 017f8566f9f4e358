"""The one table of HTTP statuses, and the four forms of an error's body.

`/v1/*` has OpenAI's form, `/a2a` JSON-RPC's, `/a2a/rest/*` that of A2A's REST binding
(`http.rest_errors`), every other path RFC 9457 problem+json (agent.md "HTTP of the pod").
"""

import logging
from collections.abc import Mapping
from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from diptych.access.caller import Forbidden
from diptych.access.limits import LimitExceeded
from diptych.core.errors import (
    DiptychError,
    NotAnswered,
    Overloaded,
    RequestError,
    StoreError,
    StoreFull,
)
from diptych.http.lazy_routes import LazyRoutes
from diptych.http.request_id import SCOPE_KEY
from diptych.http.rest_errors import ERROR_INFO, OWN_DOMAIN, is_rest_path, rest_error
from diptych.net.redaction import SECRETS

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
"""Of runs that asked again themselves, or that somebody ended: a client is not to repeat them."""
STATUS_OF_CODE = {
    "forbidden": 403,
    "run_not_found": 404,
    "too_many_runs": 429,
    "too_much_at_once": 429,
    "overloaded": 503,
    "session_busy": 409,
    "run_over": 409,
    "too_many_messages": 409,
    "not_resumable": 409,
    "already_decided": 409,
    "decision_refused": 403,
    "agent_unavailable": 503,
    "approval_not_found": 404,
    "invalid_arguments": 422,
    "model_not_found": 404,
    "session_not_found": 404,
    "previous_response_not_found": 404,
    "item_not_found": 404,
    "unsupported_media_type": 415,
    "body_too_large": 413,
    "foreign_host": 421,
    "foreign_origin": 403,
    "idempotency_mismatch": 422,
    # how a run can fail, and how reading one can; what is not here is the model's, 502
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
_RETRY_AFTER = {  # seconds
    "store_away": "2",
    "not_answered": "2",
    "store_full": "10",
    "handed_over": "1",
}
_RPC_PATHS = frozenset({"/a2a", "/a2a/"})
_RPC_INVALID_REQUEST, _RPC_INTERNAL_ERROR = -32600, -32603  # JSON-RPC 2.0, section 5.1
_METHODS = ("DELETE", "GET", "HEAD", "POST")
_JSON = "application/json"
_SERVER_ERRORS = range(500, 600)
_MODEL_FAILED = 502  # also for what lies between the agent and its model


class RunFailed(DiptychError):
    """A run ended without an answer, or cannot be read further; `code` says why.

    `has_made_calls` says that a call of the run may have started. Then a client must not retry by
    itself, as OpenAI's clients do on 5xx and 409, or the tools would run again (loop.md §9). Nor
    if the run has asked again itself, as often as it may. `headers` name the run.
    """

    def __init__(
        self, code: str, message: str, *, has_made_calls: bool, headers: Mapping[str, str]
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.has_made_calls = has_made_calls
        self.headers = dict(headers)


def error_body(
    message: str, kind: str, *, code: str | None = None, param: str | None = None
) -> dict[str, object]:
    """Write an error in OpenAI's form, without secrets."""
    return {
        "error": {"message": SECRETS.redact(message), "type": kind, "param": param, "code": code}
    }


def run_error_body(code: str, message: str) -> dict[str, object]:
    """Write why a run has no answer."""
    kinds = {
        "aborted": "aborted",
        "context_too_long": "invalid_request_error",
        "budget_exhausted": "insufficient_quota",
    }
    kind = kinds.get(code, "server_error")
    return error_body(message, kind, code=code)


def request_error_body(error: RequestError, status: int = 400) -> dict[str, object]:
    """Write what is wrong with a request."""
    kind = "server_error" if status in _SERVER_ERRORS else "invalid_request_error"
    return error_body(error.message, kind, code=error.code, param=error.param)


def store_failure(error: StoreError) -> tuple[str, str]:
    """Give code and message of a store that failed; callers see no message of a library."""
    if isinstance(error, StoreFull):
        return "store_full", "the store of runs has no room left now"
    if isinstance(error, NotAnswered):
        return "not_answered", str(error)
    return "store_away", "the record of runs cannot be reached now"


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error, ours and the framework's, in the form of its path.

    Each handler is a coroutine: Starlette calls a plain function in a thread.
    """
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(Forbidden, _on_forbidden)
    app.add_exception_handler(LimitExceeded, _on_limit)
    app.add_exception_handler(RunFailed, _on_run_failed)
    app.add_exception_handler(StoreError, _on_store_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)


def error_response(
    path: str,
    status: int,
    body: dict[str, object],
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer with an error, in the form of the path; `body` is in OpenAI's form."""
    if path.startswith("/v1/"):
        return Response(orjson.dumps(body), status, headers, _JSON)
    error = body["error"]
    assert isinstance(error, dict)
    reason = str(error["code"] or _title(status)).upper()
    if path in _RPC_PATHS:
        return Response(orjson.dumps(_rpc_error(status, error, reason)), status, headers, _JSON)
    if is_rest_path(path):
        body = rest_error(status, error["message"], reason)
        return Response(orjson.dumps(body), status, headers, _JSON)
    problem = {
        "type": "about:blank",
        "title": _title(status),
        "status": status,
        "detail": error["message"],
    }
    problem |= {name: error[name] for name in ("code", "param") if error[name]}
    return Response(orjson.dumps(problem), status, headers, "application/problem+json")


def _rpc_error(status: int, error: Mapping[str, object], reason: str) -> dict[str, object]:
    """Write an error of a request whose id nobody has read, as A2A 1.0 has them."""
    is_ours = status in _SERVER_ERRORS or status == HTTPStatus.TOO_MANY_REQUESTS
    info = {"@type": ERROR_INFO, "reason": reason, "domain": OWN_DOMAIN}
    code = _RPC_INTERNAL_ERROR if is_ours else _RPC_INVALID_REQUEST
    content = {"code": code, "message": error["message"], "data": [info]}
    return {"jsonrpc": "2.0", "id": None, "error": content}


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    status = STATUS_OF_CODE.get(error.code, 400)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, Overloaded) else {}
    return error_response(request.url.path, status, request_error_body(error, status), headers)


async def _on_forbidden(request: Request, error: Exception) -> Response:
    body = error_body(str(error), "invalid_request_error", code="forbidden")
    return error_response(request.url.path, STATUS_OF_CODE["forbidden"], body)


async def _on_limit(request: Request, error: Exception) -> Response:
    assert isinstance(error, LimitExceeded)
    body = error_body(error.message, "rate_limit_error", code="too_many_runs")
    headers = {"Retry-After": str(error.retry_after)}
    return error_response(request.url.path, STATUS_OF_CODE["too_many_runs"], body, headers)


async def _on_run_failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RunFailed)
    status = STATUS_OF_CODE.get(error.code, _MODEL_FAILED)
    headers = error.headers
    if error.code in _RETRY_AFTER:
        headers = {**headers, "Retry-After": _RETRY_AFTER[error.code]}
    if error.has_made_calls or error.code in _FINAL_CODES:
        headers = {**headers, "x-should-retry": "false"}
    return error_response(
        request.url.path, status, run_error_body(error.code, error.message), headers
    )


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
    code = _title(error.status_code).lower().replace(" ", "_")
    body = error_body(message, "invalid_request_error", code=code)
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods_of(request)):
        headers = {"Allow": methods}
    return error_response(request.url.path, error.status_code, body, headers)


def _methods_of(request: Request) -> str:
    """Name the methods of all routes of a path; Starlette names those of the first one.

    Those that are built late say it themselves.
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
    _logger.error("request %s broke", request.scope.get(SCOPE_KEY), exc_info=error)
    body = error_body("the agent failed inside", "server_error", code="internal_error")
    return error_response(request.url.path, 500, body)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
