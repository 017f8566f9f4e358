"""Reads what every request for a run carries: its session, its origin, its idempotency key.

Chats, responses, `/v1/runs` and A2A all read these here.
"""

import hashlib
import re
from collections.abc import Mapping

import orjson
from fastapi import Request

from diptych.core.errors import InvalidRequest
from diptych.core.events import Origin
from diptych.http.bodies import OnDisconnect
from diptych.http.messages import Conversation
from diptych.ports.entries import IdempotencyKey
from diptych.runs.request import RunRequest

IDEMPOTENCY_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x20-\x7e]{1,255}")


async def read_run_request(
    request: Request,
    conversation: Conversation,
    *,
    session_id: str | None,
    on_disconnect: OnDisconnect | None,
) -> RunRequest:
    """Make the request for a run of a conversation; the named fields are those of its body.

    Raises `InvalidRequest`.
    """
    session_id = _session_id(request, session_id)
    return RunRequest(
        conversation.messages,
        conversation.system,
        session_id,
        origin(request.headers, cancels_on_disconnect=on_disconnect == "cancel"),
        await read_idempotency_key(request, session_id),
    )


def origin(
    headers: Mapping[str, str],
    *,
    path: tuple[str, ...] = (),
    seconds: float | None = None,
    cancels_on_disconnect: bool = False,
) -> Origin:
    """Say where a run comes from: its trace, its call path, its deadline.

    `headers` ignores case or has lower-case names. `seconds` is what the caller has left.
    """
    return Origin(path, headers.get("traceparent"), seconds, cancels_on_disconnect)


async def read_idempotency_key(request: Request, session_id: str | None) -> IdempotencyKey | None:
    """Read the `Idempotency-Key` of a request with a JSON body, which names `session_id`.

    An earlier request with the same key, path, session and body is this one. White space and the
    order of fields do not matter. Raises `InvalidRequest` for a malformed key.
    """
    keys = request.headers.getlist(IDEMPOTENCY_HEADER)
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        raise InvalidRequest(
            f"send one {IDEMPOTENCY_HEADER}, of 1 to 255 printable ASCII characters",
            param=IDEMPOTENCY_HEADER,
        )
    content = [request.url.path.encode(), (session_id or "").encode(), await _canonical(request)]
    return idempotency_key("http", keys[0], b"\0".join(content))


def idempotency_key(scheme: str, name: str, content: bytes) -> IdempotencyKey:
    """Name a request within its scheme (`http`, `a2a`); `content` is what may not differ."""
    return IdempotencyKey(f"{scheme}:{name}", sha256(content))


def sha256(content: bytes) -> str:
    """Give the digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _session_id(request: Request, field: str | None) -> str | None:
    """Give the session that the header or the body's field names; they may say the same twice."""
    headers = request.headers.getlist("x-session-id")
    if len(headers) > 1:
        message = "send one X-Session-ID header"
        raise InvalidRequest(message, param="X-Session-ID", code="invalid_value")
    header = headers[0] if headers else None
    if header is not None and field is not None and header != field:
        message = "the X-Session-ID header and the body name different sessions; send one"
        raise InvalidRequest(message, param="session_id")
    return field if header is None else header


async def _canonical(request: Request) -> bytes:
    try:
        return orjson.dumps(orjson.loads(await request.body()), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        message = f"the body is nested too deeply for a request with an {IDEMPOTENCY_HEADER}"
        raise InvalidRequest(message, code="invalid_json") from error
