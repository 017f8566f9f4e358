"""What is refused before any route looks at it: bodies of the wrong kind, foreign web pages.

A page that a browser shows can send requests to 127.0.0.1 under its own name (DNS rebinding); so
on loopback only local names are accepted as `Host`, and as `Origin` where there is one. And it can
send texts and forms without asking first, but no JSON.
"""

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych.errors import InvalidRequest
from diptych.http.errors import error_body, error_response

MAX_BODY = 2**20  # bytes
_TOO_LARGE = "the body is larger than 1 MiB; send less"
_NO_JSON = "send the body as JSON, with the header Content-Type: application/json"

_LOCAL = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")
Refusal = tuple[int, str, str]  # HTTP status, message, code


class BodyGuard:
    """ASGI middleware: lets pass bodies that are said to be JSON, up to `MAX_BODY`.

    FastAPI's own limit answers a large Content-Length with plain text, whatever the handlers say.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := _body_refusal(scope)):
            await _refuse(refusal, scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY:
                raise InvalidRequest(_TOO_LARGE, code="body_too_large")
            return message

        await self._app(scope, limited, send)


class LoopbackGuard:
    """ASGI middleware for a server that is bound to loopback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := _page_refusal(scope)):
            await _refuse(refusal, scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    status, message, code = refusal
    body = error_body(message, "invalid_request_error", code=code)
    await error_response(scope["path"], status, body)(scope, receive, send)


def _body_refusal(scope: Scope) -> Refusal | None:
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > MAX_BODY:
        return 413, _TOO_LARGE, "body_too_large"
    has_body = length != b"0" or b"transfer-encoding" in headers
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if has_body and media_type != b"application/json":
        return 415, _NO_JSON, "unsupported_media_type"
    return None


def _page_refusal(scope: Scope) -> Refusal | None:
    hosts = _values(scope, b"host")
    if not hosts or not all(map(_LOCAL.fullmatch, hosts)):
        return 421, "this agent listens on loopback; ask it as localhost", "foreign_host"
    origins = [re.sub(r"^https?://", "", origin) for origin in _values(scope, b"origin")]
    if not all(map(_LOCAL.fullmatch, origins)):
        return 403, "web pages of other hosts may not use this agent", "foreign_origin"
    return None


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for header, value in scope["headers"] if header == name]
