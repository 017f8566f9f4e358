"""Session, origin and idempotency key of run requests by chats, responses, `/v1/runs` and A2A."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from fastapi import Request

from diptych.core.errors import InvalidRequest
from diptych.core.events import Origin
from diptych.http.bodies import RunOptions
from diptych.http.messages import Conversation
from diptych.manifest.settings import ChatConfig
from diptych.ports.entries import IdempotencyKey
from diptych.runs.request import RunRequest

IDEMPOTENCY_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x20-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class ChatTerms:
    """The manifest's terms for chats and responses; `inputs` are input kinds besides text."""

    name: str
    config: ChatConfig = field(default_factory=ChatConfig)
    inputs: tuple[str, ...] = ()

    def check_model(self, model: str | None) -> None:
        """Refuse a request for another model than the agent. Raises `InvalidRequest`."""
        if model not in (None, self.name):
            raise InvalidRequest(
                f"this agent is called {self.name!r}; use that as the model, or leave it out",
                param="model",
                code="model_not_found",
            )

    def without_effect(self, conversation: Conversation, name: str) -> tuple[str, ...]:
        """Return the system text's field name if the manifest ignores it."""
        return (name,) if conversation.system and self.config.caller_system == "off" else ()


async def read_run_request(
    request: Request,
    conversation: Conversation,
    options: RunOptions,
    session_id: str | None = None,
) -> RunRequest:
    """Build the run request of a conversation; `session_id` overrides the options' one.

    Raises `InvalidRequest`.
    """
    session_id = _session_id(request, session_id or options.session_id)
    cancels = options.on_disconnect == "cancel"
    return RunRequest(
        conversation.messages,
        conversation.system,
        session_id,
        origin(request.headers, cancels_on_disconnect=cancels),
        await read_idempotency_key(request, session_id),
        max_steps=options.max_steps,
        when_busy=options.when_busy,
    )


def origin(
    headers: Mapping[str, str],
    *,
    path: tuple[str, ...] = (),
    seconds: float | None = None,
    cancels_on_disconnect: bool = False,
) -> Origin:
    """Return a run's origin: trace, call path and the caller's deadline.

    `headers` are case-insensitive or lower-case; `seconds` is the caller's remaining time.
    """
    return Origin(path, headers.get("traceparent"), seconds, cancels_on_disconnect)


async def read_idempotency_key(
    request: Request, session_id: str | None = None
) -> IdempotencyKey | None:
    """Read the `Idempotency-Key` of a request with a JSON body.

    A retry has the same key, path, session and body, up to white space and the order of fields.
    Raises `InvalidRequest` for a malformed key.
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
    """Return a key within a scheme (`http`, `a2a`); `content` must be equal in a retry."""
    return IdempotencyKey(f"{scheme}:{name}", sha256(content))


def sha256(content: bytes) -> str:
    """Return the digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _session_id(request: Request, field: str | None) -> str | None:
    """Return the session id from the header or body; both may name the same one."""
    headers = request.headers.getlist("x-session-id")
    if len(headers) > 1:
        message = "send one X-Session-ID header"
        raise InvalidRequest(message, param="X-Session-ID", code="invalid_value")
    if headers and field not in (None, headers[0]):
        message = "the X-Session-ID header and the body name different sessions; send one"
        raise InvalidRequest(message, param="session_id")
    return headers[0] if headers else field


async def _canonical(request: Request) -> bytes:
    try:
        return orjson.dumps(await request.json(), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        message = f"the body is nested too deeply for a request with an {IDEMPOTENCY_HEADER}"
        raise InvalidRequest(message, code="invalid_json") from error
