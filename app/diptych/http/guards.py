"""Middleware before all routes: request ids, DNS rebinding, CORS, request bodies. All requests are
HTTP's: `serve.http_server` offers neither WebSockets nor lifespans.

A web page can send requests to 127.0.0.1 under its own host name (DNS rebinding), so on loopback
`Host`, and `Origin` if present, must be local. Pages can send text and forms without a preflight,
but not JSON: only JSON is accepted.
"""

import asyncio
import re
import secrets
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych.access.caller import current_caller
from diptych.core.errors import InvalidRequest, Overloaded, RequestError
from diptych.http.errors import REQUEST_ID, is_rest_path, request_error_response
from diptych.http.lazy_routes import is_taken
from diptych.net.memory_budget import MemoryBudget, Share, json_size, set_share

MAX_BODY = 2**20  # bytes
DRAIN_BYTES = 8 * MAX_BODY  # of a refused body, read after the answer …
DRAIN_SECONDS = 2.0  # … for at most so long
LARGE_ANSWER = 2**15  # bytes, from which an answer is counted
_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")
_REQUEST_ID = re.compile(r"[\w.:/+=@~-]{1,128}", re.ASCII)
_NOT_JSON, _TOO_LARGE = "unsupported_media_type", "body_too_large"
_WIDE = b"\\u"  # may stand for a character that makes its whole text wide


class RequestIds:
    """ASGI middleware: echoes a valid `X-Request-Id` or makes one, also for errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = Headers(scope=scope).getlist("x-request-id")
        is_valid = len(sent) == 1 and _REQUEST_ID.fullmatch(sent[0])
        request_id = sent[0] if is_valid else f"req-{secrets.token_hex(16)}"
        scope[REQUEST_ID] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class CorsForApi:
    """ASGI middleware: CORS for `/v1/`, without credentials.

    `origins` holds the manifest's allowed origins, or `*` for
    all. Other paths get no CORS headers.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._cors = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=(
                "Retry-After",
                "X-Diptych-Warning",
                "X-Request-Id",
                "X-Run-ID",
                "X-Session-ID",
                "x-should-retry",
            ),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["path"].startswith("/v1/")
        await (self._cors if is_api else self._app)(scope, receive, send)


class LoopbackGuard:
    """ASGI middleware for a server on loopback: accepts only local host names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := _host_refusal(scope):
            await _refuse(refusal, scope, receive, send)
            return
        await self._app(scope, receive, send)


class _Refused(Exception):
    """A body exceeded a limit while being read; passes through the application's error handlers."""

    def __init__(self, error: RequestError, *, has_ended: bool) -> None:
        super().__init__()
        self.error = error
        self.has_ended = has_ended


class BodyGuard:
    """ASGI middleware: accepts JSON bodies up to `max_body`, within the memory budget.

    Each request has a share of the budget (`current_share`) for its body, the records that it
    reads, and its reply. With `is_relay` the reply passes through in pieces, and is not counted.
    Starlette's own body limit replies in plain text and leaves the body in the socket; see
    `_refuse`.
    """

    def __init__(
        self,
        app: ASGIApp,
        memory_budget: MemoryBudget,
        *,
        max_body: int = MAX_BODY,
        is_relay: bool = False,
    ) -> None:
        self._app = app
        self._memory_budget = memory_budget
        self._max_body = max_body
        self._is_relay = is_relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _body_refusal(scope, self._max_body)
        if refusal and refusal.code == _NOT_JSON and not (self._is_relay or await is_taken(scope)):
            refusal = None  # the router names what is wrong first: the path or the method
        if refusal:
            await _refuse(refusal, scope, receive, send)
            return
        share = self._memory_budget.share(current_caller().name)
        set_share(share)
        try:
            if declared := _declared_length(Headers(scope=scope)):
                share.admit(declared)
            counted = _counted(receive, share, self._max_body)
            if not self._is_relay:
                send = _counted_answer(scope, share, receive, send)
            await self._app(scope, counted, send)
        except _Refused as error:
            await _refuse(error.error, scope, receive, send, has_ended=error.has_ended)
        except Overloaded as error:
            await _refuse(error, scope, receive, send)
        finally:
            share.release()


def _counted(receive: Receive, share: Share, max_body: int) -> Receive:
    """Wrap `receive` to enforce `max_body` and the memory budget."""
    size = 0

    async def receive_counted() -> Message:
        nonlocal size
        message = await receive()
        body = message.get("body", b"")
        size += len(body)
        has_ended = not message.get("more_body", False)
        if size > max_body:
            raise _Refused(_too_large(max_body), has_ended=has_ended)
        if body:
            wide = 0 if body.isascii() and _WIDE not in body else 3 * len(body)
            try:
                share.admit(json_size(body) + wide)
            except Overloaded as error:
                raise _Refused(error, has_ended=has_ended) from error
        return message

    return receive_counted


def _counted_answer(scope: Scope, share: Share, receive: Receive, send: Send) -> Send:
    """Wrap `send`: a large reply of known length needs memory for two copies."""
    is_replaced = False

    async def send_counted(message: Message) -> None:
        nonlocal is_replaced
        if is_replaced:
            return
        if message["type"] == "http.response.start":
            length = next((int(v) for n, v in message["headers"] if n == b"content-length"), 0)
            try:
                if length > LARGE_ANSWER:
                    share.admit(2 * length)
            except Overloaded as error:
                is_replaced = True
                await request_error_response(scope["path"], error)(scope, receive, send)
                return
            await send(message)
        elif len(message.get("body", b"")) <= LARGE_ANSWER:
            await send(message)
        else:  # the server takes the second part when it has sent most of the first
            await send({**message, "more_body": True})
            await send({**message, "body": b""})

    return send_counted


async def _refuse(
    error: RequestError, scope: Scope, receive: Receive, send: Send, *, has_ended: bool = False
) -> None:
    """Send the error, then drain the body; close the connection if it is too large.

    Closing a socket with unread bytes resets it, and a client that is still sending would see the
    reset instead of the reply (RFC 9112, 9.6). Drained bytes are discarded.
    """
    is_closing = error.code == _TOO_LARGE or isinstance(error, Overloaded)
    headers = {"Connection": "close"} if is_closing else {}
    response = request_error_response(scope["path"], error, headers)

    async def send_and_drain(message: Message) -> None:
        if message["type"] == "http.response.start" or has_ended:
            await send(message)
            return
        await send({**message, "more_body": True})
        await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await response(scope, receive, send_and_drain)


async def _drain(receive: Receive) -> None:
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return  # the body has ended, or the caller has hung up


def _too_large(max_body: int) -> InvalidRequest:
    message = f"the body is larger than {max_body // 2**20} MiB; send less"
    return InvalidRequest(message, code=_TOO_LARGE)


def _body_refusal(scope: Scope, max_body: int) -> InvalidRequest | None:
    headers = Headers(scope=scope)
    if _declared_length(headers) > max_body:
        return _too_large(max_body)
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return None
    if any(coding.lower() != "identity" for coding in headers.getlist("content-encoding")):
        # One reader decodes it, and another takes it as it is.
        message = "send the body as it is, without Content-Encoding"
        return InvalidRequest(message, code="unsupported_content_encoding")
    codings = [coding.lower() for coding in headers.getlist("transfer-encoding")]
    if codings not in ([], ["chunked"]):
        message = "the only transfer coding known here is chunked"
        return InvalidRequest(message, code="not_implemented")
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type == "application/a2a+json" and is_rest_path(scope["path"])
    )
    if is_json:
        return None
    message = "send the body as JSON, with the header Content-Type: application/json"
    return InvalidRequest(message, code=_NOT_JSON)


def _declared_length(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


def _host_refusal(scope: Scope) -> InvalidRequest | None:
    headers = Headers(scope=scope)
    hosts = [host.lower() for host in headers.getlist("host")]
    if not hosts or not all(map(_LOCAL_HOST.fullmatch, hosts)):
        message = "this agent listens on loopback; ask it as localhost"
        return InvalidRequest(message, code="foreign_host")
    sent = (origin.lower() for origin in headers.getlist("origin"))
    origins = [re.sub(r"^https?://", "", origin) for origin in sent]
    if all(map(_LOCAL_HOST.fullmatch, origins)):
        return None
    message = "web pages of other hosts may not use this agent"
    return InvalidRequest(message, code="foreign_origin")
