"""The state of a run: a value that can be rebuilt from its events."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Literal

from diptych.core.budget import UNLIMITED, Budget
from diptych.core.catalog import Catalog
from diptych.core.commands import Command, Emit
from diptych.core.context_window import ContextWindow
from diptych.core.events import (
    ApprovalRequested,
    Asked,
    CallFormat,
    InputReceived,
    InputRequested,
    MessageQueued,
    Origin,
    Returned,
    RunRequested,
    Terminal,
)
from diptych.core.messages import (
    NO_USE,
    Call,
    JSONObject,
    Message,
    NativeCall,
    Result,
    Usage,
    Used,
)
from diptych.core.prompt import Repair
from diptych.core.run_settings import RunSettings

MAX_MESSAGES_PER_RUN = 100  # after its start


class Phase(Enum):
    """What a run is waiting for."""

    NEW = "new"
    QUEUED = "queued"  # its turn in the session
    ACT = "act"  # phase 1: the model's reply
    CALL = "call"  # phase 1: results
    ANSWER = "answer"  # phase 2: the answer
    DONE = "done"


@dataclass(frozen=True, slots=True)
class NativeReply:
    """A phase-1 reply with native calls, until its results are in the conversation.

    `call_ids` maps each of `calls` to a call of the run; it is empty for a rejected reply.
    Identical calls map to the same one.
    """

    text: str
    calls: tuple[NativeCall, ...]
    call_ids: tuple[str, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole answer, not sent yet."""

    text: str
    finish_reason: str
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What the user said in this turn.

    `at` is the index of its first message in the run's `messages`, None if the run resumes another.
    `end` is the index after its last message; -1 if the question precedes `messages`.
    """

    text: str = ""
    at: int | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class Queues:
    """Queued messages: steering ones join as soon as possible, follow-ups begin turns.

    `message_ids` and `clear_ids` hold all that the run has received, to ignore repeats.
    """

    steering: tuple[MessageQueued, ...] = ()
    follow_ups: tuple[MessageQueued, ...] = ()
    message_ids: frozenset[str] = frozenset()
    clear_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The progress of a step's calls, as sets of call ids.

    `issued`: there is a command. `approved`: an approver agreed, and perhaps `edited` the call.
    `awaiting_hooks`: hooks are being asked. `passed_hooks`: hooks agreed, and perhaps have
    `rewritten` the call.
    """

    issued: frozenset[str] = frozenset()
    approved: frozenset[str] = frozenset()
    edited: frozenset[str] = frozenset()
    awaiting_hooks: frozenset[str] = frozenset()
    passed_hooks: frozenset[str] = frozenset()
    rewritten: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Repetition:
    """What recent steps have in common, to detect a stuck run (`stuck`).

    `last_error` is the newest step's only outcome, and `error_steps` for how many steps in a row.
    `side_effects` counts for each call with side effects how many steps in a row asked for it.
    `step_side_effects` has those of the current step: 1 if sent, else 0.
    """

    last_error: str = ""
    error_steps: int = 0
    side_effects: Mapping[str, int] = field(default_factory=dict)
    step_side_effects: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """The answer so far.

    `new_from` is where the newest model call's text begins, `seq` the first record of the text (0
    for none); `attempts` counts from 1. `asked_again` says why the answer was requested again.
    `is_direct`: the answer is a phase-1 reply (`answerMode: direct`). `repairs` counts repairs,
    `repair` is the newest. Hooks are judging `candidate`.
    """

    text: str = ""
    new_from: int = 0
    seq: int = 0
    attempts: int = 1
    asked_again: Literal["", "blank", "action"] = ""
    is_direct: bool = False
    repairs: int = 0
    repair: Repair | None = None
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A call that waits; `seq` is the request's record, in this run's log or in the child's."""

    asked: Asked
    seq: int

    @property
    def call_id(self) -> str:
        return self.asked.call_id

    @property
    def own_call(self) -> str:
        """The id of this run's call that waits, or below which another waits."""
        return self.call_id.partition(".")[0]


@dataclass(frozen=True)  # without slots, for `updated`
class Run:
    """One request on its way to its end. `history` is the session's conversation before it."""

    history: tuple[Message, ...] = ()
    phase: Phase = Phase.NEW
    request: RunRequested = field(default_factory=lambda: RunRequested(""))

    # Fixed by `Offered`
    settings: RunSettings = field(default_factory=RunSettings)
    catalog: Catalog = field(default_factory=Catalog)
    system: str = ""  # the whole system prompt, with the caller's part
    json_system: str = ""  # replaces `system` if the format changes to JSON
    action_format: CallFormat = "json"
    output_schema: JSONObject | None = None
    budget: Budget = UNLIMITED
    nonce: str = ""  # random for the run

    # Its conversation
    messages: tuple[Message, ...] = ()  # added by this run
    sent: tuple[Message, ...] | None = None  # in the next request; None for all (`fitting`)
    window: ContextWindow = field(default_factory=ContextWindow)
    asked: Question = Question()
    queues: Queues = Queues()

    # What it has used
    step: int = 0
    step_limit: int = 0  # grows by `max_steps` with each turn
    errors: int = 0  # rejected replies in a row
    model_calls: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    children_usage: Usage = field(default_factory=Usage)  # reported by children
    delegated: Used = NO_USE  # charged for its children
    shares: Mapping[str, Budget] = field(default_factory=dict)  # of delegations without a result

    # Its calls
    calls: tuple[Call, ...] = ()  # of this step, in the order of the reply
    native_reply: NativeReply | None = None  # the reply with these calls, if native
    progress: StepProgress = StepProgress()
    waits: tuple[OpenWait, ...] = ()  # of its calls and those below, in order
    asked_below: Mapping[str, int] = field(default_factory=dict)  # newest record, by call path
    context_ids: Mapping[str, str] = field(default_factory=dict)  # of sent delegations, by call
    started: tuple[str, ...] = ()  # ids of all sent calls, in order
    results: tuple[Result, ...] = ()  # of the whole run, in order of arrival
    repetition: Repetition = Repetition()

    # Its answer and its end
    draft: Draft = Draft()
    seq: int = 0  # number of events so far
    pending: tuple[Command, ...] = ()  # commands without the event that answers them
    end: Terminal | None = None

    @property
    def origin(self) -> Origin:
        return self.request.origin

    @property
    def subject(self) -> str:
        """The user who started the run, or on whose behalf; see `RunRequested`."""
        return self.request.subject

    @property
    def caller(self) -> str:
        """The authenticated caller, if acting on another's behalf."""
        return self.request.caller


_FIELDS = frozenset(field.name for field in fields(Run))


def updated(run: Run, **changes: Any) -> Run:  # noqa: ANN401 - as the fields are
    """Return a run with some fields changed, like `dataclasses.replace`.

    Each event changes a run several times, and `replace` took a third of the loop's time, as it
    sets all fields one by one. Raises `TypeError` for an unknown field.
    """
    if not changes.keys() <= _FIELDS:
        raise TypeError(f"a run has no {', '.join(sorted(changes.keys() - _FIELDS))}")
    new = object.__new__(Run)
    new.__dict__.update(run.__dict__)
    new.__dict__.update(changes)
    return new


def conversation(run: Run) -> tuple[Message, ...]:
    """Return the session's conversation so far, as its next run continues it."""
    return run.history + run.messages


def sent_messages(run: Run) -> tuple[Message, ...]:
    """Return the part of the conversation for the next request."""
    return conversation(run) if run.sent is None else run.sent


def append_messages(run: Run, *messages: Message) -> Run:
    """Add messages to the conversation."""
    return updated(run, messages=run.messages + messages)


def append_question(run: Run, *messages: Message) -> Run:
    """Add the user's messages to the conversation, and to the question of this turn."""
    text = "\n\n".join(filter(None, (run.asked.text, *(message.content for message in messages))))
    run = append_messages(run, *messages)
    return updated(run, asked=replace(run.asked, text=text, end=len(run.messages)))


def open_calls(run: Run) -> frozenset[str]:
    """Return the ids of this step's calls without a result."""
    return frozenset(c.id for c in run.calls) - {result.call_id for result in run.results}


def with_call(run: Run, changed: Call) -> Run:
    """Replace the call of this step that has the same id."""
    return updated(run, calls=tuple(changed if c.id == changed.id else c for c in run.calls))


def current_waits(run: Run) -> tuple[OpenWait, ...]:
    """Return the open waits, without those that a pending event ends."""
    if not run.waits:
        return ()
    ended = set[str]()
    for command in run.pending:
        match command:
            case Emit(Returned(result)):
                ended.add(result.call_id)
            case Emit(InputReceived(call_id)):
                ended.add(call_id)
    return tuple(wait for wait in run.waits if wait.call_id not in ended)


def calls_awaiting_decision(run: Run) -> frozenset[str]:
    """Return the ids of this run's own calls that wait for approval, without superseded ones."""
    return _waiting(run, ApprovalRequested)


def calls_awaiting_input(run: Run) -> frozenset[str]:
    """Return the ids of this run's own calls with an open question."""
    return _waiting(run, InputRequested)


def _waiting(run: Run, asked: type[Asked]) -> frozenset[str]:
    return frozenset(w.call_id for w in current_waits(run) if isinstance(w.asked, asked))
