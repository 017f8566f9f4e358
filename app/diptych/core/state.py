"""The state of a run: a value that can be rebuilt from its events at any time."""

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
    CallFormat,
    ChildApprovalRequested,
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

MAX_MESSAGES_PER_RUN = 100  # sent to it after its start


class Phase(Enum):
    """What a run waits for."""

    NEW = "new"
    QUEUED = "queued"  # its turn in the session
    ACT = "act"  # phase 1: the model's reply
    CALL = "call"  # phase 1: results
    ANSWER = "answer"  # phase 2: the answer
    DONE = "done"


@dataclass(frozen=True, slots=True)
class NativeReply:
    """A phase-1 reply with native calls, until its results are in the conversation.

    `call_ids` has, for each of `calls`, the id of the run's call that it became; it is empty if
    the reply was rejected. The same call asked for twice is one call of the run.
    """

    text: str
    calls: tuple[NativeCall, ...]
    call_ids: tuple[str, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole answer that nobody has been sent."""

    text: str
    finish_reason: str
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What the user has said in this turn.

    `at` is the place of its first message in the run's `messages`, None if the run resumes another.
    `end` is the number of `messages` with the last of it; -1 if it stands before them.
    """

    text: str = ""
    at: int | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class Queues:
    """Messages that wait: those that steer join as soon as possible, follow-ups begin a turn each.

    `message_ids` are those of all messages that were sent to the run after its start, `clear_ids`
    those of the requests that cleared its queues.
    """

    steering: tuple[MessageQueued, ...] = ()
    follow_ups: tuple[MessageQueued, ...] = ()
    message_ids: frozenset[str] = frozenset()
    clear_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far the calls of a step are, by their ids.

    Calls are `issued` when there is a command for them. Somebody has `approved` some of them, and
    `edited` some of these. Hooks are asked about those in `awaiting_hooks`, have let pass those in
    `passed_hooks`, and have `rewritten` some of these.
    """

    issued: frozenset[str] = frozenset()
    approved: frozenset[str] = frozenset()
    edited: frozenset[str] = frozenset()
    awaiting_hooks: frozenset[str] = frozenset()
    passed_hooks: frozenset[str] = frozenset()
    rewritten: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Repetition:
    """What steps in a row have in common (`stuck`).

    `last_error` is the newest step's if it brought nothing else, `error_steps` for how many steps
    in a row. `side_effects` counts the steps in a row that asked for each; in `step_side_effects`
    of this step, 1 stands for a call that was sent.
    """

    last_error: str = ""
    error_steps: int = 0
    side_effects: Mapping[str, int] = field(default_factory=dict)
    step_side_effects: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """The answer as far as it is written.

    The text of the newest model call begins at `new_from`; `seq` is that of the first piece, 0
    without any, and `attempts` counts from 1. `asked_again` says why the answer is asked for once
    more. An answer that `is_direct` is a phase-1 reply (`answerMode: direct`). `repairs` counts how
    often an answer could not be used, `repair` is the newest. Hooks are asked about `candidate`.
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


@dataclass(frozen=True)  # without slots, for `updated`
class Run:
    """One request on its way to its end. `history` is the session's conversation before it."""

    history: tuple[Message, ...] = ()
    phase: Phase = Phase.NEW
    request: RunRequested = field(default_factory=lambda: RunRequested(""))

    # From its offers, and fixed when it begins
    settings: RunSettings = field(default_factory=RunSettings)
    catalog: Catalog = field(default_factory=Catalog)
    system: str = ""  # the whole system prompt, the caller's part included
    json_system: str = ""  # the one that takes its place if the format changes
    action_format: CallFormat = "json"  # in which the model is asked for calls
    output_schema: JSONObject | None = None  # that the answer must fit, if there is one
    budget: Budget = UNLIMITED
    nonce: str = ""  # random for the run

    # Its conversation
    messages: tuple[Message, ...] = ()  # that this run adds
    sent: tuple[Message, ...] | None = None  # of the conversation, if not all of it (`fitting`)
    window: ContextWindow = field(default_factory=ContextWindow)
    asked: Question = Question()
    queues: Queues = Queues()

    # What it has used
    step: int = 0
    step_limit: int = 0  # the number of steps it may take: `max_steps` for each turn
    errors: int = 0  # rejected replies in a row
    model_calls: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    children_usage: Usage = field(default_factory=Usage)  # of delegations, as children say
    delegated: Used = NO_USE  # what its children have used
    shares: Mapping[str, Budget] = field(default_factory=dict)  # to delegations without a result

    # Its calls
    calls: tuple[Call, ...] = ()  # of this step, in the order of the reply
    native_reply: NativeReply | None = None  # that they come from, if their format is native
    progress: StepProgress = StepProgress()
    open_approvals: tuple[ApprovalRequested, ...] = ()  # in the order they were asked for
    child_approvals: tuple[ChildApprovalRequested, ...] = ()  # calls of runs below
    children_decided: frozenset[tuple[str, ...]] = frozenset()  # paths of those that wait no more
    context_ids: Mapping[str, str] = field(default_factory=dict)  # of delegations sent, by call
    started: tuple[str, ...] = ()  # ids of all calls that were sent, in order
    results: tuple[Result, ...] = ()  # of the whole run, in the order in which they came
    repetition: Repetition = Repetition()

    # Its answer and its end
    draft: Draft = Draft()
    seq: int = 0  # how many events there were
    pending: tuple[Command, ...] = ()  # commands without the event that answers them
    end: Terminal | None = None

    @property
    def origin(self) -> Origin:
        return self.request.origin

    @property
    def subject(self) -> str:
        """Who began it, or on whose behalf; see `RunRequested`."""
        return self.request.subject

    @property
    def caller(self) -> str:
        """Who began it, if that is on another's behalf."""
        return self.request.caller


_FIELDS = frozenset(field.name for field in fields(Run))


def updated(run: Run, **changes: Any) -> Run:  # noqa: ANN401 - as the fields are
    """Return a run with other values of some fields, as `dataclasses.replace` does.

    Each event changes a run several times, and `replace` sets all its fields one by one: that took
    a third of the loop's time. Raises `TypeError` for a name that is no field.
    """
    if not changes.keys() <= _FIELDS:
        raise TypeError(f"a run has no {', '.join(sorted(changes.keys() - _FIELDS))}")
    new = object.__new__(Run)
    new.__dict__.update(run.__dict__)
    new.__dict__.update(changes)
    return new


def conversation(run: Run) -> tuple[Message, ...]:
    """The session's conversation up to now, as its next run continues it."""
    return run.history + run.messages


def sent_messages(run: Run) -> tuple[Message, ...]:
    """What of the conversation the model is sent now."""
    return conversation(run) if run.sent is None else run.sent


def append_messages(run: Run, *messages: Message) -> Run:
    """Add messages to the conversation."""
    return updated(run, messages=run.messages + messages)


def append_question(run: Run, *messages: Message) -> Run:
    """Add messages of the user to the conversation: all of this turn are its question."""
    text = "\n\n".join(filter(None, (run.asked.text, *(message.content for message in messages))))
    run = append_messages(run, *messages)
    return updated(run, asked=replace(run.asked, text=text, end=len(run.messages)))


def open_calls(run: Run) -> frozenset[str]:
    """The ids of this step's calls that have no result yet."""
    return frozenset(c.id for c in run.calls) - {result.call_id for result in run.results}


def calls_awaiting_decision(run: Run) -> frozenset[str]:
    """The ids of the calls that wait for a decision; one that was superseded waits no more."""
    if not run.open_approvals:
        return frozenset()
    events = (command.event for command in run.pending if isinstance(command, Emit))
    results = {event.result.call_id for event in events if isinstance(event, Returned)}
    return frozenset(requested.call.id for requested in run.open_approvals) - results
