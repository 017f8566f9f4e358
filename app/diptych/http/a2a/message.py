"""What an A2A message asks of this agent: read defensively, refused with a reason.

Not here: whether the task that a message names exists, and takes it (`http.a2a`).
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from a2a.types import Message, Part, Role, SendMessageRequest
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as ProtobufMessage

from diptych.loop import messages
from diptych.loop.events import Origin, Steered
from diptych.net import a2a_extension
from diptych.ports.entries import IdempotencyKey
from diptych.runtime.request import SESSION_ID, RunRequest

_ID_LIMIT = 128  # characters of a message's id that are kept as they are


def read_ask(request: SendMessageRequest, headers: Mapping[str, str]) -> RunRequest:
    """Read the task, and what a delegation of ours carries beside it.

    The caller's context stands before the task, so that the model reads both as one conversation.
    `headers` have lower-case names. Raises the errors of A2A, and `InvalidRequest` for a wrong use
    of the extension.
    """
    message = request.message
    _check_form(request)
    context, texts = _read_parts(message)
    task = "\n".join(texts)
    if not task.strip():
        raise InvalidParamsError("the message has no text; send the task as a text part")
    path, seconds = a2a_extension.read_terms(_json(message.metadata).get(a2a_extension.URI))
    return RunRequest(
        messages=(*context, messages.Message("user", task)),
        session_id=message.context_id or None,
        origin=Origin(path, headers.get("traceparent"), seconds),
        idempotency_key=_once(message),
    )


def read_follow_up(message: Message, ask: RunRequest) -> Steered:
    """Give what a message says to the task that it names; what context it brings is left out."""
    message_id = message.message_id
    if len(message_id) > _ID_LIMIT:
        message_id = _sha256(message_id.encode())
    return Steered(ask.messages[-1].content, message_id)


def _check_form(request: SendMessageRequest) -> None:
    validate_proto_required_fields(request)
    message = request.message
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("message.role must be ROLE_USER")
    if message.context_id and not SESSION_ID.fullmatch(message.context_id):
        raise InvalidParamsError("message.contextId must match [A-Za-z0-9._-]{1,128}")
    if request.configuration.HasField("task_push_notification_config"):
        raise PushNotificationNotSupportedError


def _once(message: Message) -> IdempotencyKey:
    """Tell a message from others by its id and context, as the specification allows (3.3.1).

    Its parts are what it says; the seconds that its caller has left differ when it is sent again.
    """
    name = f"{message.context_id or '-'}:{message.message_id}"
    parts = b"".join(part.SerializeToString(deterministic=True) + b"\0" for part in message.parts)
    return IdempotencyKey(f"a2a:{_sha256(name.encode())}", _sha256(parts))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_parts(message: Message) -> tuple[tuple[messages.Message, ...], list[str]]:
    context: tuple[messages.Message, ...] = ()
    texts: list[str] = []
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data" if a2a_extension.URI in part.metadata:
                context += a2a_extension.read_context(_json(part.data))
            case kind:
                raise ContentTypeNotSupportedError(_not_taken(kind, part))
    return context, texts


def _not_taken(kind: str | None, part: Part) -> str:
    media_type = f" ({part.media_type[:100]})" if part.media_type else ""
    return (
        f"a part of kind {kind or 'none'}{media_type} is not accepted: send text parts; "
        f"data is accepted only under the extension {a2a_extension.URI}"
    )


def _json(message: ProtobufMessage) -> Any:  # noqa: ANN401 - whatever the caller sent
    try:
        return MessageToDict(message)
    except ValueError as error:  # NaN and infinity
        raise InvalidParamsError("the message holds a number that JSON does not have") from error
