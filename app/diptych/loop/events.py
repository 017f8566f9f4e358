"""Events and commands of a run: facts in, instructions out.

Events are facts in the past participle; `codec.EVENT_TYPES` has their names on record. Commands
are imperatives that `runtime.runner` carries out.

Not here: the rules that lead from one to the other (`reducer`).
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diptych.loop.actions import ActionError
from diptych.loop.catalog import Catalog
from diptych.loop.messages import Call, Message, Result, Usage

CallKind = Literal["tool", "agent"]


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The bounds of a run, from the manifest's `loop`; fixed when it starts."""

    max_steps: int = 5
    on_max_steps: Literal["stop", "answer"] = "stop"
    max_retries: int = 3
    max_parallel_calls: int = 8
    memory_context_limit: int = 6


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request says about where it came from.

    `path` holds the card URLs of the agents before this one, `traceparent` the caller's trace
    (W3C Trace Context), `seconds` what was left until the caller's deadline. With
    `cancels_on_disconnect` the run is aborted when its last subscriber hangs up.
    """

    path: tuple[str, ...] = ()
    traceparent: str | None = None
    seconds: float | None = None
    cancels_on_disconnect: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """The caller's message; `earlier` holds the messages before it that the caller sent along.

    `system` is the caller's own system text, for this run only.
    """

    message: str
    earlier: tuple[Message, ...] = ()
    system: str = ""
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class Steered:
    """Another message to a run that exists, delivered as soon as possible (loop.md §6).

    A message that is sent again, under the same `message_id`, is taken once.
    """

    message: str
    message_id: str


@dataclass(frozen=True, slots=True)
class Offered:
    """The run's catalog, system prompt and settings; fixed from here on.

    `key` is the hash under which they are stored once for many runs (`codec.catalog_blob`).
    """

    catalog: Catalog
    prompt: str
    settings: LoopSettings = field(default_factory=LoopSettings)
    key: str = ""


@dataclass(frozen=True, slots=True)
class OwnerChanged:
    """Another process has taken the run over, from its record.

    With `lost_tail` the store may have lost the newest records: their effects may have happened.
    """

    lost_tail: bool = False


@dataclass(frozen=True, slots=True)
class Replied:
    """The model's reply. In phase 2 `text` is empty, for it is on record as `Streamed`."""

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class ReplyRejected:
    """A reply looked like an action and cannot be carried out."""

    error: ActionError
    said: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call with its references filled is about to be sent; delegations have a `context_id`."""

    call: Call
    step: int
    context_id: str | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """A call has its result, sent or not; `target` is the name that the model used."""

    result: Result
    kind: CallKind
    target: str


@dataclass(frozen=True, slots=True)
class Streamed:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerReset:
    """The answer was asked for again and came out differently: its earlier text is void.

    `from_seq` is the seq of the first void piece; `attempt` counts from 2.
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
    """The end, with an answer. `usage` is the sum over the run's model calls."""

    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class StepsExhausted:
    """The end at `max_steps`, with the literal text of loop.md §2 and the results so far."""

    text: str
    results: tuple[Result, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The end, because of a failure that the run cannot survive."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """The end by cancellation."""

    reason: str


Stop: TypeAlias = Failed | Aborted
"""An end that may come from outside, in any phase."""

Signal: TypeAlias = Stop | Steered
"""What can be sent to a run that exists (as a signal of Temporal)."""

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
    """Send these messages to the model; stream its reply if it is the answer.

    `index` is the number of model calls on record before this one. `recorded` is the text on
    record of an answer that was cut off and is asked for again.
    """

    messages: tuple[Message, ...]
    index: int
    answer: bool = False
    recorded: str = ""


@dataclass(frozen=True, slots=True)
class MakeCall:
    """Make this call; its references are filled and its arguments valid.

    With `is_retry` its start is on record already, and it is safe to make twice.
    """

    call: Call
    step: int
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Emit:
    """Record this event, which follows from the one before, and apply it."""

    event: Event


@dataclass(frozen=True, slots=True)
class Warn:
    """Send the notice `format_warning`: a reply was not what it should be."""

    text: str


Command: TypeAlias = AskModel | MakeCall | Emit | Warn
