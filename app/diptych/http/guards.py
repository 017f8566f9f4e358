"""Guards before all routes: they refuse bodies of a wrong kind or size, and foreign web pages.

A page in a browser can send requests to 127.0.0.1 under its own host name (DNS rebinding). So on
loopback only local names are accepted as `Host`, and as `Origin` if there is one. Such a page can
also send texts and forms without asking first, but no JSON.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych.http.errors import error_body, error_response
from diptych.http.lazy_routes import is_taken
from diptych.http.rest_errors import is_rest_path

MAX_BODY = 2**20  # bytes
DRAIN_BYTES = 8 * MAX_BODY  # of a refused body, read after the answer …
DRAIN_SECONDS = 2.0  # … for at most so long

_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")


class Refusal(NamedTuple):
    """The answer to a request that no route sees, or that there is no room for."""

    status: int
    message: str
    code: str
    retry_after: int | None = None  # seconds


_CLOSING = frozenset({413, 429, 503})  # after which no connection has to be read to its end
_KINDS = {429: "rate_limit_error", 503: "server_error"}
_TOO_LARGE = Refusal(413, "the body is larger than 1 MiB; send less", "body_too_large")
_NOT_JSON = Refusal(
    415,
    "send the body as JSON, with the header Content-Type: application/json",
    "unsupported_media_type",
)
_ENCODED = Refusal(
    415, "send the body as it is, without Content-Encoding", "unsupported_content_encoding"
)
_CODED = Refusal(501, "the only transfer coding known here is chunked", "not_implemented")
_FOREIGN_HOST = Refusal(421, "this agent listens on loopback; ask it as localhost", "foreign_host")
_FOREIGN_ORIGIN = Refusal(403, "web pages of other hosts may not use this agent", "foreign_origin")


class _BodyTooLarge(Exception):
    """More than `MAX_BODY` has arrived; no handler of the application knows this error."""

    def __init__(self, *, has_ended: bool) -> None:
        super().__init__()
        self.has_ended = has_ended


class BodyGuard:
    """ASGI middleware: accepts bodies that are declared as JSON, as they are, up to `MAX_BODY`.

    Starlette's own limit answers a large Content-Length with plain text, whatever the handlers
    say, and leaves the body in the socket (`refuse` says why that matters).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _body_refusal(scope) if scope["type"] == "http" else None
        if refusal is _NOT_JSON and not await is_taken(scope):
            refusal = None  # the router says what is wrong first: the path or the method
        if refusal:
            await refuse(refusal, scope, receive, send)
            return
        size = 0

        async def limited_receive() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise _BodyTooLarge(has_ended=not message.get("more_body", False))
            return message

        try:
            await self._app(scope, limited_receive, send)
        except _BodyTooLarge as error:
            await refuse(_TOO_LARGE, scope, receive, send, has_ended=error.has_ended)


class LoopbackGuard:
    """ASGI middleware for a server that is bound to loopback: accepts local names alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := _host_refusal(scope)):
            await refuse(refusal, scope, receive, send)
            return
        await self._app(scope, receive, send)


async def refuse(
    refusal: Refusal, scope: Scope, receive: Receive, send: Send, *, has_ended: bool = False
) -> None:
    """Answer, then read the body unless it `has_ended`; close if it is too large.

    To close a socket that holds unread bytes resets the connection, and a client that sends its
    whole body first would see the reset instead of the answer (RFC 9112, section 9.6). What is
    read here is not stored.
    """
    headers = {"Connection": "close"} if refusal.status in _CLOSING else {}
    response = refusal_response(refusal, scope, headers)

    async def send_and_drain(message: Message) -> None:
        if message["type"] == "http.response.start" or has_ended:
            await send(message)
            return
        await send({**message, "more_body": True})
        await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await response(scope, receive, send_and_drain)


def refusal_response(
    refusal: Refusal, scope: Scope, headers: Mapping[str, str] | None = None
) -> Response:
    """Give the answer that says why."""
    kind = _KINDS.get(refusal.status, "invalid_request_error")
    body = error_body(refusal.message, kind, code=refusal.code)
    if refusal.retry_after is not None:
        headers = {**(headers or {}), "Retry-After": str(refusal.retry_after)}
    return error_response(scope["path"], refusal.status, body, headers)


async def _drain(receive: Receive) -> None:
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return  # the body has ended, or the caller has hung up


def _body_refusal(scope: Scope) -> Refusal | None:
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > MAX_BODY:
        return _TOO_LARGE
    has_body = length != b"0" or b"transfer-encoding" in headers
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    is_json = media_type == b"application/json" or (
        media_type == b"application/a2a+json" and is_rest_path(scope["path"])
    )
    if not has_body:
        return None
    if b"content-encoding" in headers and not _is_identity(scope):
        return _ENCODED  # one reader decodes it, and another takes it as it is
    if b"transfer-encoding" in headers and not _is_chunked_alone(scope):
        return _CODED
    return None if is_json else _NOT_JSON


def _is_identity(scope: Scope) -> bool:
    return all(coding == "identity" for coding in _header_values(scope, b"content-encoding"))


def _is_chunked_alone(scope: Scope) -> bool:
    return _header_values(scope, b"transfer-encoding") == ["chunked"]


def _host_refusal(scope: Scope) -> Refusal | None:
    hosts = _header_values(scope, b"host")
    if not hosts or not all(map(_LOCAL_HOST.fullmatch, hosts)):
        return _FOREIGN_HOST
    origins = [re.sub(r"^https?://", "", origin) for origin in _header_values(scope, b"origin")]
    return None if all(map(_LOCAL_HOST.fullmatch, origins)) else _FOREIGN_ORIGIN


def _header_values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for header, value in scope["headers"] if header == name]
