"""A request for a run, or to resume one, and the event that begins its run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

from diptych.core import prompt
from diptych.core.budget import UNLIMITED, Budget
from diptych.core.codec import Record, event_of, is_terminal
from diptych.core.errors import InvalidRequest, NotResumable
from diptych.core.events import Origin, RunRequested
from diptych.core.messages import JSONObject, Message
from diptych.core.rendering import without_native_calls
from diptych.core.text import well_formed
from diptych.ports.entries import IdempotencyKey, RunEntry
from diptych.ports.ids import owned_session
from diptych.ports.stores import EventLog
from diptych.runs.definition import WhenBusy

SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_RESUMABLE = frozenset({"failed", "aborted"})
_LOST = frozenset({"store_lost"})  # codes of failed runs whose messages are in no conversation


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a run.

    `messages` are the caller's, without system messages. If the last one is the assistant's, the
    answer continues it; if it is a tool's, the run goes on from it. With a `session_id` only those
    after the last answer are new (loop.md §2). A request with the `idempotency_key` of an earlier
    one is that one, sent again. The answer must fit `output_schema` (`{}`: any JSON object).
    `parameters` and `when_busy` overlay the manifest's, `budget` and `max_steps` tighten it.
    Sessions and idempotency keys of one `owner` are apart from those of others; "" is nobody.
    `subject`, `caller` and `notes` are as in `RunRequested`. `follows` is the session's run that
    this one continues: if the session has gone on, a new one gets the conversation up to there.
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
    """Return the stored id of the requested session, if any. Raises `InvalidRequest`."""
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
    """Return the request's idempotency key, apart from those of other owners."""
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
    """Make a run's first event of the new messages of a request. Raises `InvalidRequest`.

    In a known session that is what follows the last answer. `last_answer` is the session's, for a
    request that `continues_answer`: then that message of the request is not new either.
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
    """Return the messages that are not on record yet.

    The last answer may be on record as a text where the caller has it as a call, so results of it
    become text.
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


def resume_key(run_id: str) -> IdempotencyKey:
    """Return the key under which a run is resumed once, however often that is requested."""
    return IdempotencyKey(f"resume:{run_id}", "")


async def find_resumable(log: EventLog, run_id: str) -> tuple[Sequence[Record], RunEntry | None]:
    """Return the records of a run that can be resumed, and the run that already resumes it, if any.

    Raises `NotResumable`, and as `EventLog.read` does.
    """
    records = await log.read(run_id)
    _check_end(records[-1])
    session_id = records[0].session_id
    newest, *_ = await log.entries(session_id, limit=1)
    if newest.run_id == run_id:
        return records, None
    if following := _following(await log.entries(session_id), run_id):
        (first, *_) = await log.read(following.run_id, 0, 1)
        if first.metadata.get("resumes") == run_id:
            return records, following
    raise NotResumable(
        f"its session has gone on with {newest.run_id}; send a message to the session"
    )


def _following(entries: Sequence[RunEntry], run_id: str) -> RunEntry | None:
    """Return the run that was opened after a run: if any resumes it, that one does."""
    return next((newer for newer, older in pairwise(entries) if older.run_id == run_id), None)


def _check_end(end: Record) -> None:
    if not is_terminal(end):
        raise NotResumable("the run has not ended; wait for its end, or cancel it")
    if end.event_type not in _RESUMABLE:
        raise NotResumable(
            "only a run that failed or was aborted can be resumed; send a message to its session"
        )
    if end.metadata.get("code") in _LOST:
        raise NotResumable("the record of the run is not whole; ask again, with a new run")


def resuming_event(
    records: Sequence[Record], origin: Origin, max_steps: int | None
) -> RunRequested:
    """Return the first event of the run that resumes the one with these records.

    What that run said is in its session's conversation, with all results; so the new one has no
    message, unless the old one ended before it began. Its other options still hold.
    """
    first, run_id = records[0], records[0].run_id
    asked = cast("RunRequested", event_of(first))
    kept = replace(
        asked,
        origin=replace(origin, path=asked.origin.path),
        max_steps=asked.max_steps if max_steps is None else max_steps,
        resumes=run_id,
    )
    if any(record.event_type == "offered" for record in records):
        return replace(kept, message="", earlier=(), parts=())
    later = [str(r.content) for r in records[1:] if r.event_type == "user_message"]
    if not later:
        return kept
    said = (Message("user", asked.message, parts=asked.parts),) if asked.message else ()
    before = (*asked.earlier, *said, *(Message("user", text) for text in later[:-1]))
    return replace(kept, message=later[-1], earlier=before, parts=())
