"""What an HTTP status of an MCP server means for the request that it answers."""

import json

import httpx2

from diptych.adapters.mcp.request_outcome import RequestOutcome, Stage
from diptych.loop.messages import JSONObject

AUTH_STATUSES = frozenset({401, 403, 407, 421})
"""Statuses that refuse us before MCP begins (421: the server does not serve this host name)."""

REJECTED_STATUSES = AUTH_STATUSES | {404, 410}
"""Statuses that say that no tool was reached, and that a further request would reach none."""

NO_STREAMABLE_HTTP = "no MCP over streamable HTTP at this address (the older SSE is not spoken)"

HINTS = {
    400: NO_STREAMABLE_HTTP,
    401: "it wants credentials",
    403: "it refuses the credentials, or this host name",
    404: NO_STREAMABLE_HTTP,
    405: NO_STREAMABLE_HTTP,
    421: "it does not serve this host name",
}
"""What a status most likely means for somebody who writes a manifest."""


def record_status(
    request: httpx2.Request, response: httpx2.Response, body: bytes, outcome: RequestOutcome
) -> bool:
    """Record what an HTTP status means; give whether the server answers in MCP's own terms.

    That it does not know the session (any more) is one of these, and no reason to give it up.
    """
    status = response.status_code
    if status < httpx2.codes.MULTIPLE_CHOICES:
        outcome.record(Stage.ANSWERED)
        return True
    error = _json_rpc_error(body)
    if "mcp-session-id" in request.headers and _knows_no_session(request, status, error):
        outcome.record(Stage.NOT_SENT, "its session ended")
        return True
    if status not in AUTH_STATUSES and error is not None:
        outcome.record(Stage.ANSWERED)
        return True
    if status < httpx2.codes.BAD_REQUEST:
        reason = _redirect(request, response)
    else:
        hint = HINTS.get(status) if outcome.is_handshake else None
        reason = f"HTTP {status}: {hint}" if hint else f"HTTP {status}"
    outcome.record(_stage_of(status), reason)
    return False


def _stage_of(status: int) -> Stage:
    if status in REJECTED_STATUSES:
        return Stage.REJECTED
    if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        return Stage.SERVER_ERROR
    return Stage.UNUSABLE


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


def _json_rpc_error(body: bytes) -> JSONObject | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # which would end all calls of the connection
        return None
    if not isinstance(value, dict) or "jsonrpc" not in value:
        return None
    return value if isinstance(value.get("error"), dict) else None


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
    message = json.loads(request.content or b"null")
    return message.get("id") if isinstance(message, dict) else None
