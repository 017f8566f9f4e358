"""The state of a run: a value that can be rebuilt from its events at any time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Literal

from diptych.core.budget import NEVER_FAR, UNLIMITED, Budget, FarBelow
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
    Terminal,
)
from diptych.core.messages import (
    JSON,
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
    """A whole answer that nobody has been told."""

    text: str
    finish_reason: str
    is_json: bool = False


@dataclass(frozen=True)  # without slots, for `updated`
class Run:
    """One request on its way to its end. `history` is the session's conversation before it."""

    history: tuple[Message, ...] = ()
    phase: Phase = Phase.NEW
    settings: RunSettings = field(default_factory=RunSettings)
    catalog: Catalog = field(default_factory=Catalog)
    system: str = ""  # the whole system prompt, the caller's part included
    json_system: str = ""  # the one that takes its place if the format changes
    action_format: CallFormat = "json"  # in which the model is asked for calls
    origin: Origin = field(default_factory=Origin)
    parameters: Mapping[str, JSON] = field(default_factory=dict)  # the request's, of the model
    output_schema: JSONObject | None = None  # that the answer must fit, if the request has one
    max_steps: int | None = None  # the request's
    budget: Budget = UNLIMITED  # the request's; once it begins, the run's
    far_below: FarBelow = NEVER_FAR  # while it has used less it is far from the budget's limits
    nonce: str = ""  # random for the run
    messages: tuple[Message, ...] = ()  # what this run adds to the conversation
    asked_at: int | None = None  # which of them is the question; None if it resumes another run
    resumes: str | None = None  # the id of that run
    subject: str = ""  # who began it, or on whose behalf
    caller: str = ""  # who began it, if that is on another's behalf
    window: ContextWindow = field(default_factory=ContextWindow)
    sent: tuple[Message, ...] | None = None  # of the conversation, if not all of it (`fitting`)
    question: str = ""  # what the user has said in this turn
    question_end: int = 0  # how many `messages` there were with the last of it; -1: before them
    message_ids: frozenset[str] = (
        frozenset()
    )  # of the messages that were sent to it after its start
    clear_ids: frozenset[str] = frozenset()  # of the requests that cleared its queues
    steering: tuple[MessageQueued, ...] = ()  # those of them that are to join as soon as possible
    follow_ups: tuple[MessageQueued, ...] = ()  # those of them that are to begin a turn each
    step: int = 0
    step_limit: int = 0  # the number of steps it may take: `max_steps` for each turn
    errors: int = 0  # rejected replies in a row
    model_calls: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    children_usage: Usage = field(default_factory=Usage)  # of delegations, as children say
    delegated: Used = NO_USE  # what its children have used
    shares: Mapping[str, Budget] = field(default_factory=dict)  # to delegations without a result
    calls: tuple[Call, ...] = ()  # of this step, in the order of the reply
    native_reply: NativeReply | None = None  # that they come from, if their format is native
    issued: frozenset[str] = frozenset()  # ids of calls that a command was given for
    open_approvals: tuple[ApprovalRequested, ...] = ()  # in the order they were asked for
    child_approvals: tuple[ChildApprovalRequested, ...] = ()  # calls of runs below
    children_decided: frozenset[tuple[str, ...]] = frozenset()  # paths of those that wait no more
    approved: frozenset[str] = frozenset()  # ids of this step's calls that somebody has approved
    edited: frozenset[str] = frozenset()  # those of them that are not what the reply asked for
    context_ids: Mapping[str, str] = field(default_factory=dict)  # of delegations sent, by call
    awaiting_hooks: frozenset[str] = frozenset()  # this step's calls that hooks are asked about now
    passed_hooks: frozenset[str] = frozenset()  # those that hooks have let pass
    rewritten: frozenset[str] = frozenset()  # those of them that a hook has changed
    candidate: Candidate | None = None  # an answer that hooks are being asked about
    started: tuple[str, ...] = ()  # ids of all calls that were sent, in order
    results: tuple[Result, ...] = ()  # of the whole run, in the order in which they came
    last_error: str = ""  # if the newest step brought nothing else
    error_steps: int = 0  # how many steps in a row brought it
    side_effects: Mapping[str, int] = field(
        default_factory=dict
    )  # how many steps in a row asked for one
    step_side_effects: Mapping[str, int] = field(
        default_factory=dict
    )  # that this step asks for; 1 if it was sent
    seq: int = 0  # how many events there were
    answer: str = ""
    answer_from: int = 0  # where in `answer` the text of the newest model call begins
    answer_seq: int = 0  # of the first piece of the answer
    answer_attempts: int = 1
    asked_again: Literal["", "blank", "action"] = ""  # why the answer is asked for once more
    is_direct: bool = False  # the answer is that of a phase-1 reply (`answerMode: direct`)
    repairs: int = 0  # how often the answer was asked for again because it did not fit its schema
    repair: Repair | None = None  # the newest such answer
    pending: tuple[Command, ...] = ()  # commands without the event that answers them
    end: Terminal | None = None


_FIELDS = frozenset(field.name for field in fields(Run))


def updated(run: Run, **changes: Any) -> Run:  # noqa: ANN401 - as the fields are
    """Give a run with other values of some fields, as `dataclasses.replace` does.

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
    said = filter(None, (run.question, *(message.content for message in messages)))
    run = append_messages(run, *messages)
    return updated(run, question="\n\n".join(said), question_end=len(run.messages))


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
