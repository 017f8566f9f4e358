"""Lets the scripts of web pages use the API, from the origins that the manifest names (CORS).

It is for the paths under `/v1/` alone: no page needs the memory or the metrics.
"""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

_EXPOSED = (
    "Retry-After",
    "X-Diptych-Warning",
    "X-Request-Id",
    "X-Run-ID",
    "X-Session-ID",
    "x-should-retry",
)
_MAX_AGE = 600  # seconds for which a browser keeps the answer to its question


class CorsForApi:
    """ASGI middleware; `origins` holds origins, or `*` for all. Credentials are not sent along."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._cors = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=_EXPOSED,
            max_age=_MAX_AGE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (self._cors if is_api else self._app)(scope, receive, send)
