"""`Idempotency-Key`: what tells a request that is sent again from a new one.

The key of an earlier request with the same path, session and body stands for the run that it
began. A2A's messages have ids of their own for that (`http.a2a_message`).
"""

import hashlib
import re

import orjson
from fastapi import Request

from diptych.errors import InvalidRequest
from diptych.ports.entries import IdempotencyKey

HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x20-\x7e]{1,255}")


async def read_once(request: Request, session_id: str | None) -> IdempotencyKey | None:
    """Read the key of a request whose body is JSON, and which asks for `session_id`.

    Bodies that differ in white space or in the order of their fields alone are the same. Raises
    `InvalidRequest` for a key that is none.
    """
    keys = request.headers.getlist(HEADER)
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        raise InvalidRequest(
            f"send one {HEADER}, of 1 to 255 printable ASCII characters", param=HEADER
        )
    whole = [request.url.path.encode(), (session_id or "").encode(), await _canonical(request)]
    return IdempotencyKey(f"http:{keys[0]}", hashlib.sha256(b"\0".join(whole)).hexdigest())


async def _canonical(request: Request) -> bytes:
    try:
        return orjson.dumps(orjson.loads(await request.body()), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        message = f"the body is nested too deeply for a request with an {HEADER}"
        raise InvalidRequest(message, code="invalid_json") from error
