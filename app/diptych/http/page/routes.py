"""Serves the page's files: the same for everybody, and without anything secret.

They need no token, as `/health` needs none (`http.access_guard`): a browser cannot send one with an
address that somebody types. All that the page shows it asks for itself, with the token that it is
given.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from diptych.http.agent_profile import AgentProfile

AGENT_PATH = "/page/agent.json"
_FOLDER = Path(__file__).parent
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = {
    "/" if file.name == "index.html" else f"/page/{file.relative_to(_FOLDER).as_posix()}": file
    for file in sorted((*_FOLDER.iterdir(), *(_FOLDER / "vendor").iterdir()))
    if file.suffix in _TYPES
}
PAGE_PATHS = frozenset({*_FILES, AGENT_PATH})

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src data:",  # the icon
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",  # `innerHTML` and its like throw
    "trusted-types 'none'",
)
_HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, and asked about each time: another version has other files
}


def page_routes(profile: AgentProfile) -> Sequence[Route]:
    """Return the routes of the page and of the agent's profile that it shows."""
    about = {
        "name": profile.name,
        "description": profile.description,
        "asks_for_token": profile.asks_for_token,
    }
    files = (_route(path, file.read_bytes(), _TYPES[file.suffix]) for path, file in _FILES.items())
    return [*files, _route(AGENT_PATH, orjson.dumps(about), "application/json")]


def _route(path: str, body: bytes, media_type: str) -> Route:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": etag}

    async def get(request: Request) -> Response:
        if _has(request.headers.get("if-none-match", ""), etag):
            return Response(None, 304, headers)
        return Response(body, 200, headers, media_type)

    return Route(path, get, methods=["GET"], include_in_schema=False)


def _has(known: str, etag: str) -> bool:
    """Whether a caller has this content (RFC 9110, section 13.1.2); proxies make tags weak."""
    return any(tag.strip().removeprefix("W/") in {etag, "*"} for tag in known.split(","))
