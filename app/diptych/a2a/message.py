"""Reads and validates A2A messages."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from a2a.types import Message, Part, Role, SendMessageRequest
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import ParseDict

from diptych.a2a import extension
from diptych.a2a.parts import read_part, sent_json
from diptych.core import messages
from diptych.core.events import MessageQueued
from diptych.http.run_request import idempotency_key, origin, sha256
from diptych.ports.entries import IdempotencyKey
from diptych.runs.request import SESSION_ID, RunRequest

_NOTE = "a2a"
_MAX_ID = 128  # characters; a longer id of a message is hashed
_AG2_HISTORY = "application/vnd.ag2.history+json"
"""AG2 repeats its context's earlier messages in each message; they are known here."""
_ADK_MARK = "is_user_input"
"""Google ADK marks parts so that its user, or an agent of its own, said."""


def read_a2a_request(
    request: SendMessageRequest, headers: Mapping[str, str], inputs: Collection[str] = ()
) -> RunRequest:
    """Read a task with the extension's context, call path and deadline.

    The caller's context precedes the task, so that the model reads one conversation. `headers` have
    lower-case names, `inputs` is the manifest's `model.inputs`. Raises A2A errors, and
    `InvalidRequest` for invalid extension data.
    """
    message = request.message
    _validate(request)
    context, read = _read_parts(message, inputs)
    task = "\n".join(part for part in read if isinstance(part, str))
    files = tuple(part for part in read if not isinstance(part, str))
    if not (task.strip() or files):
        raise InvalidParamsError("the message has no text; send the task as a text part")
    metadata = sent_json(message.metadata).get(extension.URI)
    about = extension.read_metadata(extension.from_wire(metadata))
    comes_from = origin(headers, path=about.path, seconds=about.deadline)
    return RunRequest(
        messages=(*context, messages.Message("user", task, parts=files)),
        session_id=message.context_id or None,
        origin=replace(
            comes_from,
            parent=about.parent,
            deadline_pauses=about.deadline_pauses,
            lease=about.lease,
        ),
        idempotency_key=_idempotency_key(message),
        subject=about.subject,
        budget=about.budget,
        notes=_notes(message, task),
    )


def read_steering(message: Message, request: RunRequest) -> MessageQueued:
    """Read a message to an existing task, without its context.

    `request` comes from `read_a2a_request`.
    """
    if request.messages[-1].parts:
        raise ContentTypeNotSupportedError(
            "a message to a task that runs takes text and data; send files with a new task of its "
            "context"
        )
    message_id = message.message_id
    if len(message_id) > _MAX_ID:
        message_id = sha256(message_id.encode())
    return MessageQueued(request.messages[-1].content, message_id, notes=request.notes)


def as_sent(message: Message) -> Message:
    """Return a message without our extension's context and metadata, and without AG2's history."""
    shown = Message()
    shown.CopyFrom(message)
    del shown.parts[:]
    shown.parts.extend(part for part in message.parts if not _is_context(part))
    shown.metadata.fields.pop(extension.URI, None)
    if not shown.metadata.fields:
        shown.ClearField("metadata")
    return shown


def read_notes(notes: Any, text: str) -> Message:  # noqa: ANN401 - JSON
    """Restore a message as it was sent, from its record's notes and text."""
    message = Message(parts=[Part(text=text)])
    if noted := notes.get(_NOTE):
        if "parts" in noted:
            message.ClearField("parts")
        ParseDict(noted, message)
    return message


def _notes(message: Message, text: str) -> messages.JSONObject:
    """Return the parts of a message, besides its text, that GetTask shows."""
    noted = sent_json(as_sent(message))
    if noted["parts"] == [{"text": text}]:
        del noted["parts"]
    return {_NOTE: {k: v for k, v in noted.items() if k not in {"role", "taskId", "contextId"}}}


def takes_last_update_for_whole(message: Message) -> bool:
    """Whether the client takes the last update of a streamed answer for the whole answer, as ADK
    for Python does. Only a mark on its messages identifies it (decision 226).
    """
    return any(_ADK_MARK in part.metadata for part in message.parts)


def joins_by_blanks(request: SendMessageRequest, headers: Mapping[str, str]) -> bool:
    """Whether the client joins pieces of a streamed answer with blanks, as CrewAI does: an A2A 0.3
    client that names its output modes (decision 226).
    """
    is_older = headers.get(VERSION_HEADER.lower(), "0.3").startswith("0.")
    return is_older and bool(request.configuration.accepted_output_modes)


def _validate(request: SendMessageRequest) -> None:
    validate_proto_required_fields(request)
    message = request.message
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("message.role must be ROLE_USER")
    if message.context_id and not SESSION_ID.fullmatch(message.context_id):
        raise InvalidParamsError("message.contextId must match [A-Za-z0-9._-]{1,128}")


def _idempotency_key(message: Message) -> IdempotencyKey:
    """Return a key from a message's context and id (specification, 3.3.1).

    Only the parts are compared: the remaining deadline differs in a retry.
    """
    name = f"{message.context_id or '-'}:{message.message_id}"
    parts = b"".join(part.SerializeToString(deterministic=True) + b"\0" for part in message.parts)
    return idempotency_key("a2a", sha256(name.encode()), parts)


def _read_parts(
    message: Message, inputs: Collection[str]
) -> tuple[tuple[messages.Message, ...], list[str | messages.JSONObject]]:
    context: tuple[messages.Message, ...] = ()
    read: list[str | messages.JSONObject] = []
    for part in message.parts:
        if not _is_context(part):
            read.append(read_part(part, inputs))
        elif extension.URI in part.metadata:
            context += extension.read_context(sent_json(part.data))
    return context, read


def _is_context(part: Part) -> bool:
    """Whether a part has earlier messages: our extension's, or AG2's."""
    is_ours = extension.URI in part.metadata
    return part.HasField("data") and (is_ours or part.media_type == _AG2_HISTORY)
