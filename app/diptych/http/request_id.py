"""Gives every request an id, which its response repeats, errors and refusals too."""

import re
import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
SCOPE_KEY = "diptych.request_id"
_VALID = re.compile(rb"[\w.:/+=@~-]{1,128}", re.ASCII)


class RequestIds:
    """ASGI middleware: echoes a caller's `X-Request-Id` if it is a valid one, else makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope[SCOPE_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def _request_id(scope: Scope) -> str:
    """Give the id of a request: the caller's, if there is just one and it is valid."""
    sent = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(sent) == 1 and _VALID.fullmatch(sent[0]):
        return str(sent[0], "ascii")
    return f"req-{secrets.token_hex(16)}"
