"""A request for a run, whatever protocol it came by, and the event that begins its run.

Not here: what a request looks like on the wire (`http`), starting the run (`service`).
"""

import re
from dataclasses import dataclass, field, replace

from diptych.errors import InvalidRequest
from diptych.loop.events import Asked, Origin
from diptych.loop.messages import Message
from diptych.loop.text import well_formed
from diptych.ports.entries import IdempotencyKey

SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a run.

    `messages` are the caller's, without system messages; the last one is a user's. With a
    `session_id` only those after the last assistant message are new (loop.md §2). A request with
    the `idempotency_key` of an earlier one is that one, sent again.
    """

    messages: tuple[Message, ...]
    system: str = ""
    session_id: str | None = None
    origin: Origin = field(default_factory=Origin)
    idempotency_key: IdempotencyKey | None = None


def requested_session(request: RunRequest) -> str | None:
    """Give the id of the session that the request names, if any. Raises `InvalidRequest`."""
    if request.session_id is None or SESSION_ID.fullmatch(request.session_id):
        return request.session_id
    raise InvalidRequest(
        "a session id has 1 to 128 of the characters A-Z a-z 0-9 . _ -", param="session_id"
    )


def first_event(request: RunRequest, *, is_known: bool) -> Asked:
    """Give what is new in a request: in a known session, what follows the last answer.

    Raises `InvalidRequest`.
    """
    messages = request.messages
    if not messages or messages[-1].role != "user":
        raise InvalidRequest("the last message must be the user's", param="messages")
    if is_known:
        answers = [n for n, message in enumerate(messages) if message.role == "assistant"]
        messages = messages[answers[-1] + 1 :] if answers else messages
    earlier = tuple(Message(m.role, well_formed(m.content)) for m in messages[:-1])
    origin = request.origin
    if not _TRACEPARENT.fullmatch(origin.traceparent or ""):  # W3C Trace Context, 3.2.2
        origin = replace(origin, traceparent=None)
    return Asked(well_formed(messages[-1].content), earlier, well_formed(request.system), origin)
