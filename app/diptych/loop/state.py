"""What a run is at a moment: a value, rebuilt from its events at any time.

Not here: what becomes of it by an event (`loop`).
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from diptych.loop.catalog import Catalog
from diptych.loop.events import Command, LoopSettings, Origin, Terminal
from diptych.loop.messages import Call, Message, Result, Usage

MAX_MESSAGES_PER_RUN = 100  # that one run takes while it is there


class Phase(Enum):
    """Where a run is on its way."""

    NEW = "new"
    QUEUED = "queued"  # asked, and waiting for its session's turn
    ACT = "act"  # phase 1: waiting for the model
    CALL = "call"  # phase 1: waiting for calls
    ANSWER = "answer"  # phase 2
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Run:
    """One request on its way to its end. `history` is what its session said before it."""

    history: tuple[Message, ...] = ()
    phase: Phase = Phase.NEW
    settings: LoopSettings = field(default_factory=LoopSettings)
    catalog: Catalog = field(default_factory=Catalog)
    system: str = ""  # the whole system prompt, the caller's part included
    origin: Origin = field(default_factory=Origin)
    messages: tuple[Message, ...] = ()  # what this run adds to the conversation
    message_ids: frozenset[str] = frozenset()  # ids of the messages that came while it was there
    undelivered: tuple[Message, ...] = ()  # those of them that have not joined the conversation yet
    step: int = 0
    last_step: int = 0  # that it may take: `max_steps` for each turn
    errors: int = 0  # replies in a row that could not be read
    model_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    calls: tuple[Call, ...] = ()  # of this step, in asked order
    issued: frozenset[str] = frozenset()  # ids of calls that a command was given for
    started: tuple[str, ...] = ()  # ids of all calls that were sent, in order
    results: tuple[Result, ...] = ()  # of the whole run, in the order in which they came
    seq: int = 0  # how many events there were
    answer: str = ""
    answer_from: int = 0  # where in `answer` the text of the newest model call begins
    answer_seq: int = 0  # of the first piece of the answer
    answer_attempts: int = 1
    was_blank: bool = False  # the answer was blank once and is asked for again
    pending: tuple[Command, ...] = ()  # what was commanded and has not happened yet
    end: Terminal | None = None


def conversation(run: Run) -> tuple[Message, ...]:
    """Give all that was said up to now, as the session's next run continues it."""
    return run.history + run.messages


def request_prefix(run: Run) -> tuple[Message, ...]:
    """Give what stands before a run's own messages whenever the model is asked."""
    system = (Message("system", run.system),) if run.system else ()
    return system + run.history


def append_messages(run: Run, *messages: Message) -> Run:
    """Add messages to the conversation."""
    return replace(run, messages=run.messages + messages)


def deliver_messages(run: Run) -> Run:
    """Let the messages that wait join the conversation; what was misread before is past."""
    if not run.undelivered:
        return run
    return replace(append_messages(run, *run.undelivered), undelivered=(), errors=0)


def open_calls(run: Run) -> frozenset[str]:
    """Name the calls of this step that have no result yet."""
    return frozenset(c.id for c in run.calls) - {result.call_id for result in run.results}
