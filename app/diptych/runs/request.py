"""A request for a run, whatever protocol it came by, and the event that begins its run."""

import re
from dataclasses import dataclass, field, replace

from diptych.core import prompt
from diptych.core.budget import UNLIMITED, Budget
from diptych.core.errors import InvalidRequest
from diptych.core.events import Origin, RunRequested
from diptych.core.messages import JSONObject, Message
from diptych.core.rendering import without_native_calls
from diptych.core.text import well_formed
from diptych.ports.entries import IdempotencyKey
from diptych.ports.session_ids import owned_session
from diptych.runs.definition import WhenBusy

SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a run.

    `messages` are the caller's, without system messages. If the last one is the assistant's, the
    answer continues it; if it is a tool's, the run goes on from it. With a `session_id` only those
    after the last answer are new (loop.md §2). A request with
    the `idempotency_key` of an earlier one is that one, sent again. `output_schema` is the JSON
    schema that the answer must fit (`{}`: any JSON object), `parameters` overlay the manifest's
    for the model, `budget` holds where the manifest allows as much, and `max_steps` is at most the
    manifest's. Sessions and
    idempotency keys of one `owner` are apart from those of others; "" is nobody's. `subject` and
    `caller` are who asks, as `RunRequested` has them. `when_busy` takes the place of the
    manifest's. `notes` are those of `RunRequested`. `follows` is the run of the session that this
    one continues: if the session has gone on, it gets a session of its own, with what was said up
    to that run.
    """

    messages: tuple[Message, ...]
    system: str = ""
    session_id: str | None = None
    origin: Origin = field(default_factory=Origin)
    idempotency_key: IdempotencyKey | None = None
    output_schema: JSONObject | None = None
    parameters: JSONObject = field(default_factory=dict)
    max_steps: int | None = None
    owner: str = ""
    subject: str = ""
    caller: str = ""
    budget: Budget = UNLIMITED
    when_busy: WhenBusy | None = None
    notes: JSONObject = field(default_factory=dict)
    follows: str = ""


def requested_session(request: RunRequest) -> str | None:
    """Give the stored id of the session that the request names, if any. Raises `InvalidRequest`."""
    if request.session_id is None:
        return None
    if SESSION_ID.fullmatch(request.session_id):
        return owned_session(request.owner, request.session_id)
    raise InvalidRequest(
        "a session id has 1 to 128 of the characters A-Z a-z 0-9 . _ -", param="session_id"
    )


def check_steps(asked: int | None, most: int) -> None:
    """Refuse a run that asks for more steps than its agent's, or none. Raises `InvalidRequest`."""
    if asked is not None and not (type(asked) is int and 1 <= asked <= most):
        raise InvalidRequest(
            f"max_steps: this agent's runs have at least 1 and at most {most}",
            param="max_steps",
            code="invalid_value",
        )


def owned_key(request: RunRequest) -> IdempotencyKey | None:
    """Give the request's idempotency key, apart from those of other owners."""
    key = request.idempotency_key
    return replace(key, key=f"{request.owner} {key.key}") if key and request.owner else key


def _well_formed(message: Message) -> Message:
    content = well_formed(message.content)
    return message if content == message.content else replace(message, content=content)


def continues_answer(request: RunRequest) -> bool:
    """Whether the last message is the assistant's, so that the answer continues it."""
    return bool(request.messages) and request.messages[-1].role == "assistant"


def run_requested(
    request: RunRequest, *, is_known: bool, last_answer: str | None = None
) -> RunRequested:
    """Give what is new in a request: in a known session, what follows the last answer.

    `last_answer` is the session's, for a request that `continues_answer`: then that message of the
    request is not new. Raises `InvalidRequest`.
    """
    if not any(message.role == "user" for message in request.messages):
        raise InvalidRequest("there is no user message", param="messages")
    if continues_answer(request) and request.output_schema is not None:
        raise InvalidRequest(
            "an answer of a given form cannot continue the assistant's last message; leave out "
            "one of the two",
            param="messages",
        )
    new = request.messages
    if is_known:
        new = _after_last_answer(new, last_answer)
    *earlier, last = map(_well_formed, _with_question(new, request))
    origin = request.origin
    trace = origin.traceparent  # W3C Trace Context, 3.2.2
    if trace is not None and not _TRACEPARENT.fullmatch(trace):
        origin = replace(origin, traceparent=None)
    return RunRequested(
        last.content,
        tuple(earlier),
        well_formed(request.system),
        origin,
        last.parts,
        request.parameters,
        request.max_steps,
        request.output_schema,
        subject=request.subject,
        caller=request.caller,
        budget=request.budget,
        notes=request.notes,
    )


def _with_question(new: tuple[Message, ...], request: RunRequest) -> tuple[Message, ...]:
    """Add what asks the model to go on, if the caller's last message is not a user's."""
    match request.messages[-1].role:
        case "assistant":
            return (*new, Message("user", prompt.CONTINUE_ANSWER))
        case "tool":
            return (*new, Message("user", prompt.CONTINUE_WITH_RESULTS))
        case _:
            return new


def _after_last_answer(
    messages: tuple[Message, ...], last_answer: str | None
) -> tuple[Message, ...]:
    """Give what is not on record yet; an answer that is to be continued may be.

    The answer may be on record as a text where the caller has it as a call, so results of it are
    given as text.
    """
    opening = messages[-1:] if messages[-1].role == "assistant" else ()
    if opening and opening[0].content == last_answer:
        return ()
    before = messages[: len(messages) - len(opening)]
    answers = [n for n, message in enumerate(before) if message.role == "assistant"]
    if not answers:
        return messages
    _, *new = without_native_calls(before[answers[-1] :], nonce="")
    return (*new, *opening)
