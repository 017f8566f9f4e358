"""What an HTTP response of an MCP server means for the request that it answers."""

import json

import httpx2

from diptych.core.messages import JSONObject
from diptych.mcp.request_outcome import RequestOutcome, Stage

AUTH_STATUSES = frozenset({401, 403, 407, 421})
"""Statuses that refuse us before MCP begins (421: the server does not serve this host name)."""

REJECTED_STATUSES = AUTH_STATUSES | {404, 410}
"""Statuses that say that no tool was reached, and that a further request would reach none."""

NO_STREAMABLE_HTTP = (
    "no MCP over streamable HTTP at this address; HTTP+SSE, the transport before it, is not "
    "supported: start the server with streamable HTTP, and give its URL (often …/mcp)"
)

HINTS = {
    400: NO_STREAMABLE_HTTP,
    401: "it wants credentials",
    403: "it refuses the credentials, or this host name",
    404: NO_STREAMABLE_HTTP,
    405: NO_STREAMABLE_HTTP,
    421: "it does not serve this host name",
}
"""What a status most likely means for somebody who writes a manifest."""


def record_response(
    request: httpx2.Request, response: httpx2.Response, body: bytes, outcome: RequestOutcome
) -> httpx2.Response:
    """Record what a response with its whole body means; return it as the SDK reads it.

    What a POST brings back is the answer to its request, whatever the content type says, and also
    if it has no id. Anything else is an error at once: there is no other answer to wait for.
    """
    status, headers, message = response.status_code, response.headers.copy(), _json_rpc(body)
    if message is not None:
        headers["content-type"] = "application/json"
    if not response.is_success:
        _record_status(request, response, message, outcome)
    elif (own_id := _id_of(request)) is None:
        outcome.record(Stage.ANSWERED)
    else:
        problem = _problem(own_id, response, body, message)
        outcome.record(Stage.UNUSABLE if problem else Stage.ANSWERED, problem)
        if problem:
            message = {"error": {"code": -32000, "message": problem}}
        if message is not None and message.get("id") is None:
            body = json.dumps({**message, "jsonrpc": "2.0", "id": own_id}).encode()
        status, headers["content-type"] = httpx2.codes.OK, "application/json"
    return httpx2.Response(status, headers=headers, content=body)


def _problem(
    own_id: object, response: httpx2.Response, body: bytes, message: JSONObject | None
) -> str | None:
    """Say why a response with a good status is no answer to a request; None if it is one."""
    if not body.strip():
        return f"HTTP {response.status_code} without an answer"
    if message is None:
        return "its answer is not JSON-RPC"
    if message.get("id") is not None and str(message["id"]) != str(own_id):
        return "its answer is to another request"
    return None


def _record_status(
    request: httpx2.Request,
    response: httpx2.Response,
    message: JSONObject | None,
    outcome: RequestOutcome,
) -> None:
    """Record what a status other than success means.

    An unknown session is no reason to give up on the server.
    """
    status = response.status_code
    error = message if message is not None and isinstance(message.get("error"), dict) else None
    if "mcp-session-id" in request.headers and _knows_no_session(request, status, error):
        outcome.record(Stage.NOT_SENT, "its session ended")
        return
    if status not in AUTH_STATUSES and error is not None:
        outcome.record(Stage.ANSWERED)
        return
    if status < httpx2.codes.BAD_REQUEST:
        reason = _redirect(request, response)
    else:
        hint = HINTS.get(status) if outcome.is_handshake else None
        reason = f"HTTP {status}: {hint}" if hint else f"HTTP {status}"
    outcome.record(_stage_of(status), reason)


def _stage_of(status: int) -> Stage:
    if status in REJECTED_STATUSES:
        return Stage.REJECTED
    if status >= httpx2.codes.INTERNAL_SERVER_ERROR or status == httpx2.codes.REQUEST_TIMEOUT:
        return Stage.SERVER_ERROR
    return Stage.REFUSED


def _redirect(request: httpx2.Request, response: httpx2.Response) -> str:
    """Say whether a redirect is about a slash alone.

    No address is quoted: another one is in the server's words, and some paths hold a secret.
    """
    to = response.headers.get("location", "")
    path = request.url.path
    for other, what in ((path + "/", "with"), (path.removesuffix("/"), "without")):
        if other != path and to in (other, str(request.url.copy_with(path=other))):
            return f"redirects to its address {what} a slash at the end: write its URL so"
    return "redirects to another address"


def _json_rpc(body: bytes) -> JSONObject | None:
    """Read a result or an error of JSON-RPC."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # which would end all calls of the connection
        return None
    if not isinstance(value, dict) or "jsonrpc" not in value or "method" in value:
        return None
    match value:
        case {"error": {"code": int(), "message": str()}} | {"result": dict()}:
            return value
    return None


def _knows_no_session(request: httpx2.Request, status: int, error: JSONObject | None) -> bool:
    """Say whether the session is not known to the server (any more), so that nothing was called.

    MCP's status for it is 404. Some say 400 and an error about the session (server-everything
    2026.8.31); it answers no request by its id, as an answer of a tool would.
    """
    if status != httpx2.codes.BAD_REQUEST or error is None:
        return status == httpx2.codes.NOT_FOUND
    details = error["error"]
    message = details.get("message") if isinstance(details, dict) else None
    is_of_session = isinstance(message, str) and "session" in message.lower()
    return is_of_session and (error.get("id") is None or error["id"] != _id_of(request))


def _id_of(request: httpx2.Request) -> object:
    """Return the id of what has an answer; our own answers have one, too, and get none."""
    message = json.loads(request.content or b"null")
    is_request = isinstance(message, dict) and "method" in message
    return message.get("id") if is_request else None
