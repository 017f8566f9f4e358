"""The state of a run: a value that can be rebuilt from its events at any time.

Not here: what becomes of it by an event (`reducer`).
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from diptych.loop.catalog import Catalog
from diptych.loop.events import Command, LoopSettings, Origin, Terminal
from diptych.loop.messages import Call, Message, Result, Usage

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
class Run:
    """One request on its way to its end. `history` is the session's conversation before it."""

    history: tuple[Message, ...] = ()
    phase: Phase = Phase.NEW
    settings: LoopSettings = field(default_factory=LoopSettings)
    catalog: Catalog = field(default_factory=Catalog)
    system: str = ""  # the whole system prompt, the caller's part included
    origin: Origin = field(default_factory=Origin)
    messages: tuple[Message, ...] = ()  # what this run adds to the conversation
    message_ids: frozenset[str] = (
        frozenset()
    )  # of the messages that were sent to it after its start
    undelivered: tuple[Message, ...] = ()  # those of them that are not in the conversation yet
    step: int = 0
    step_limit: int = 0  # the number of steps it may take: `max_steps` for each turn
    errors: int = 0  # rejected replies in a row
    model_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    calls: tuple[Call, ...] = ()  # of this step, in the order of the reply
    issued: frozenset[str] = frozenset()  # ids of calls that a command was given for
    started: tuple[str, ...] = ()  # ids of all calls that were sent, in order
    results: tuple[Result, ...] = ()  # of the whole run, in the order in which they came
    seq: int = 0  # how many events there were
    answer: str = ""
    answer_from: int = 0  # where in `answer` the text of the newest model call begins
    answer_seq: int = 0  # of the first piece of the answer
    answer_attempts: int = 1
    was_blank: bool = False  # the answer was blank once and is asked for again
    pending: tuple[Command, ...] = ()  # commands without the event that answers them
    end: Terminal | None = None


def conversation(run: Run) -> tuple[Message, ...]:
    """The session's conversation up to now, as its next run continues it."""
    return run.history + run.messages


def request_prefix(run: Run) -> tuple[Message, ...]:
    """What precedes a run's own messages in every request to the model."""
    system = (Message("system", run.system),) if run.system else ()
    return system + run.history


def append_messages(run: Run, *messages: Message) -> Run:
    """Add messages to the conversation."""
    return replace(run, messages=run.messages + messages)


def deliver_messages(run: Run) -> Run:
    """Add the undelivered messages to the conversation, and forget earlier rejections."""
    if not run.undelivered:
        return run
    return replace(append_messages(run, *run.undelivered), undelivered=(), errors=0)


def open_calls(run: Run) -> frozenset[str]:
    """The ids of this step's calls that have no result yet."""
    return frozenset(c.id for c in run.calls) - {result.call_id for result in run.results}
