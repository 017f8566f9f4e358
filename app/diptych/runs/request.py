"""Requests to start or resume a run, and the event that begins it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

from diptych.core import prompt
from diptych.core.budget import UNLIMITED, Budget
from diptych.core.catalog import Catalog, Tool
from diptych.core.codec import Record, event_of, is_terminal
from diptych.core.errors import InvalidRequest, NotResumable
from diptych.core.events import Origin, RunRequested
from diptych.core.excerpts import READER
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
_LOST = frozenset({"store_lost"})  # failures after which a run's messages are in no conversation
SCHEDULE = "schedule"
"""The note of a run that a schedule started: its name, in a cluster that of its CronJob."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a run.

    `messages` are the caller's, without system messages. If the last is an assistant message, the
    answer continues it; if it is a tool message, the run continues from that result. With a
    `session_id`, only messages after the last answer are new (loop.md §2). Requests with the same
    `idempotency_key` are the same request. The answer must fit `output_schema` (`{}`: any JSON
    object). `parameters`, `max_retries` and `when_busy` override the manifest's; `budget` and
    `max_steps` tighten it; up to `most_steps`, `max_steps` may also be more. Sessions and
    idempotency keys are private to their `owner`; "" is anonymous. `subject`, `caller` and `notes`
    are as in `RunRequested`. `follows` is the run that this one continues: if the session has
    continued otherwise, a new session is forked from there. `tools` are the caller's own.
    """

    messages: tuple[Message, ...]
    system: str = ""
    session_id: str | None = None
    origin: Origin = field(default_factory=Origin)
    idempotency_key: IdempotencyKey | None = None
    output_schema: JSONObject | None = None
    parameters: JSONObject = field(default_factory=dict)
    max_steps: int | None = None
    max_retries: int | None = None
    owner: str = ""
    subject: str = ""
    caller: str = ""
    budget: Budget = UNLIMITED
    when_busy: WhenBusy | None = None
    notes: JSONObject = field(default_factory=dict)
    follows: str = ""
    most_steps: int = 0
    tools: tuple[Tool, ...] = ()


def requested_session(request: RunRequest) -> str | None:
    """Return the stored id of the requested session, if any. Raises `InvalidRequest`."""
    if request.session_id is None:
        return None
    if SESSION_ID.fullmatch(request.session_id):
        return owned_session(request.owner, request.session_id)
    raise InvalidRequest(
        "a session id has 1 to 128 characters from A-Z a-z 0-9 . _ -", param="session_id"
    )


def check_steps(asked: int | None, limit: int) -> None:
    """Raise `InvalidRequest` if a run asks for fewer than 1 or more than `limit` steps."""
    if asked is not None and not (type(asked) is int and 1 <= asked <= limit):
        raise InvalidRequest(
            f"max_steps must be at least 1 and at most {limit}, this agent's limit",
            param="max_steps",
            code="invalid_value",
        )


def check_tools(tools: Sequence[Tool], catalog: Catalog) -> None:
    """Raise `InvalidRequest` if a caller's tool has a name of the agent's `catalog`."""
    for n, tool in enumerate(tools):
        if tool.name in catalog.names or tool.name == READER:
            raise InvalidRequest(
                f"tools[{n}]: the agent has a tool or agent called {tool.name!r}; give yours "
                "another name",
                param=f"tools[{n}]",
                code="invalid_value",
            )


def owned_key(request: RunRequest) -> IdempotencyKey | None:
    """Return the request's idempotency key, made unique to its owner."""
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
    """Make a run's first event from the new messages of a request. Raises `InvalidRequest`.

    In a known session, only messages after the last answer are new. `last_answer` is that answer,
    for a request that `continues_answer`: the message to continue is not new either.
    """
    if not any(message.role == "user" for message in request.messages):
        raise InvalidRequest("messages must contain a user message", param="messages")
    if continues_answer(request) and request.output_schema is not None:
        raise InvalidRequest(
            "an answer with an output schema cannot continue an assistant message; leave out one "
            "of the two",
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
        request.max_retries,
        request.output_schema,
        subject=request.subject,
        caller=request.caller,
        budget=request.budget,
        notes=request.notes,
        tools=request.tools,
    )


def _with_question(new: tuple[Message, ...], request: RunRequest) -> tuple[Message, ...]:
    """Ask the model to continue, if the last message is not the user's."""
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
    """Return the messages that are not in the log yet.

    The caller may hold the last answer as a call where the log has text, so results of it become
    text.
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
    """Return the idempotency key by which a run is resumed only once."""
    return IdempotencyKey(f"resume:{run_id}", "")


async def find_resumable(log: EventLog, run_id: str) -> tuple[Sequence[Record], RunEntry | None]:
    """Return a resumable run's records, and the run that already resumes it, if any.

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
        f"its session has continued with {newest.run_id}; send a message to the session"
    )


def _following(entries: Sequence[RunEntry], run_id: str) -> RunEntry | None:
    """Return the run opened next after a run; only that one can resume it."""
    return next((newer for newer, older in pairwise(entries) if older.run_id == run_id), None)


def _check_end(end: Record) -> None:
    if not is_terminal(end):
        raise NotResumable("the run has not ended; wait until it ends, or cancel it")
    if end.event_type not in _RESUMABLE:
        raise NotResumable(
            "only a run that failed or was aborted can be resumed; send a message to its session"
        )
    if end.metadata.get("code") in _LOST:
        raise NotResumable("the log of the run is incomplete; start a new run")


def resuming_event(
    records: Sequence[Record], origin: Origin, max_steps: int | None
) -> RunRequested:
    """Return the first event of a run that resumes the one with these records.

    The session has that run's messages and results, so the new run has no message, unless the old
    one ended before it began. Other options carry over.
    """
    first, run_id = records[0], records[0].run_id
    asked = cast("RunRequested", event_of(first))
    kept = replace(
        asked,
        origin=replace(origin, path=asked.origin.path),
        max_steps=asked.max_steps if max_steps is None else max_steps,
        resumes=run_id,
        tools=(),  # nobody waits for their calls
    )
    if any(record.event_type == "offered" for record in records):
        return replace(kept, message="", earlier=(), parts=())
    later = [str(r.content) for r in records[1:] if r.event_type == "user_message"]
    if not later:
        return kept
    said = (Message("user", asked.message, parts=asked.parts),) if asked.message else ()
    before = (*asked.earlier, *said, *(Message("user", text) for text in later[:-1]))
    return replace(kept, message=later[-1], earlier=before, parts=())
