"""What happens to a run, and what it wants done: facts in, commands out.

Events are facts in the past participle; each is recorded under one name (`record.EVENT_TYPES`).
Commands are imperatives that the runner obeys. Neither has behaviour: the rules are in `loop`.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diptych.loop.actions import ActionError
from diptych.loop.catalog import Catalog
from diptych.loop.messages import Call, Message, Result, Usage

CallKind = Literal["tool", "agent"]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What a run is held under, from the manifest's `loop`; fixed when it starts."""

    max_steps: int = 5
    on_max_steps: Literal["stop", "answer"] = "stop"
    max_retries: int = 3
    max_parallel_calls: int = 8
    memory_context_limit: int = 6


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run came from, and what that means for it.

    `path` holds the card URLs of the agents before it, `traceparent` the caller's trace (W3C
    Trace Context), `seconds` what the caller's deadline left when it asked. With
    `cancels_on_disconnect` nobody wants the run whose reader has hung up.
    """

    path: tuple[str, ...] = ()
    traceparent: str | None = None
    seconds: float | None = None
    cancels_on_disconnect: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """The caller's message; `earlier` are the messages it brought that come before it.

    `system` is the caller's own system text, which holds for this run only.
    """

    message: str
    earlier: tuple[Message, ...] = ()
    system: str = ""
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class Steered:
    """Another message for a run that is there: it joins the conversation as soon as it can.

    `message_id` tells it from others of the same words: one that is sent again joins once.
    """

    message: str
    message_id: str


@dataclass(frozen=True, slots=True)
class Offered:
    """What the run may call, how it is told so, and its terms; fixed from here on.

    `key` is the hash under which the rest is kept once for many runs (`record.catalog_blob`).
    """

    catalog: Catalog
    prompt: str
    settings: LoopSettings = field(default_factory=LoopSettings)
    key: str = ""


@dataclass(frozen=True, slots=True)
class OwnerChanged:
    """Another process has taken the run up, from its record.

    If the store lost a tail of the record, what is missing there may have been done all the same.
    """

    lost_tail: bool = False


@dataclass(frozen=True, slots=True)
class Replied:
    """The model's reply. In phase 2 `text` is empty: it is on record already, as `Streamed`."""

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class ReplyRejected:
    """A reply looked like an action and cannot be run as one."""

    error: ActionError
    said: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call, with its references filled, is about to be sent; `context_id` is a delegation's."""

    call: Call
    step: int
    context_id: str | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """A call has come to its end, sent or not; `target` is the name that the model used."""

    result: Result
    kind: CallKind
    target: str


@dataclass(frozen=True, slots=True)
class Streamed:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerReset:
    """The answer was asked for again and came out differently: what was told of it is void.

    `from_seq` is the seq of the first piece that is void; `attempt` counts from 2.
    """

    from_seq: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole answer."""

    text: str
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Completed:
    """The end: with an answer. `usage` is the sum over the run's model calls."""

    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class StepsExhausted:
    """The end: at `max_steps`, with the literal text of loop.md §2 and what was found so far."""

    text: str
    results: tuple[Result, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The end: something that the run cannot do without is broken."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """The end: somebody said stop."""

    reason: str


Stop: TypeAlias = Failed | Aborted
"""An end that can come from outside, in any phase."""

Signal: TypeAlias = Stop | Steered
"""What somebody outside can want of a run that is there."""

Terminal: TypeAlias = Completed | StepsExhausted | Stop
Event: TypeAlias = (
    Asked
    | Steered
    | Offered
    | OwnerChanged
    | Replied
    | ReplyRejected
    | Called
    | Returned
    | Streamed
    | AnswerReset
    | Answered
    | Terminal
)


@dataclass(frozen=True, slots=True)
class AskModel:
    """Ask the model with these messages; stream its reply if it is the answer.

    `index` counts the model calls that are on record before this one. `told` is what is on record
    already of an answer that was cut off and is asked for again.
    """

    messages: tuple[Message, ...]
    index: int
    answer: bool = False
    recorded: str = ""


@dataclass(frozen=True, slots=True)
class MakeCall:
    """Make this call; its references are filled and its arguments fit.

    `again` is one whose start is on record, and that may safely be made twice.
    """

    call: Call
    step: int
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Emit:
    """Record this event, which follows from those before it, and feed it back."""

    event: Event


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the caller, live and unrecorded, that a reply was not what it should be."""

    text: str


Command: TypeAlias = AskModel | MakeCall | Emit | Warn
