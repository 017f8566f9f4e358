"""The commands of a run: imperatives, carried out by `runs.runner`."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.core.events import Event, InputAction
from diptych.core.messages import JSON, Call, JSONObject
from diptych.core.model_request import ModelRequest

Purpose = Literal["actions", "answer", "either", "summary"]
"""What a model request is for: `either` accepts actions or the answer (`answerMode: direct`);
`summary` asks to summarize the conversation (loop.md §11)."""


@dataclass(frozen=True, slots=True)
class AskModel:
    """Send a request to the model.

    `recorded` is the logged text of an interrupted answer that is requested again. If the endpoint
    refuses the request's tools, the run fails unless `may_change_format`. `keeps` is the number of
    newest messages that a summary leaves alone. `weight` is the request's weight, None if unknown.
    """

    request: ModelRequest
    purpose: Purpose
    recorded: str = ""
    may_change_format: bool = False
    keeps: int = 0
    weight: int | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the reply is, or may be, the answer."""
        return self.purpose in ("answer", "either")


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """The answer to a call's question; only an accepted one has `content`."""

    action: InputAction
    content: JSONObject | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer to a call's newest question, and the `state` that was logged with it.

    Without a state, the call cannot continue in another process: it is made anew.
    """

    state: JSON
    answer: InputAnswer


@dataclass(frozen=True, slots=True)
class MakeCall:
    """Make a call; its references are resolved and its arguments valid.

    `is_retry`: its start is already logged, and it is safe to repeat; a delegation is not sent
    again but resumed by its context. `is_approved`: do not ask for approval again. `resumed`: the
    answer to the call's question; if the call waits in this process it continues, else it is made
    with this.
    """

    call: Call
    step: int
    is_retry: bool = False
    is_approved: bool = False
    resumed: Resumed | None = None


@dataclass(frozen=True, slots=True)
class Emit:
    """Log and apply this event, a consequence of the one before."""

    event: Event


@dataclass(frozen=True, slots=True)
class Warn:
    """Send the notice `format_warning`: a reply was malformed."""

    text: str


class Judge:
    """Ask the hooks."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JudgeCall(Judge):
    """Ask the hooks about a call; its references are resolved and its arguments valid."""

    call: Call
    step: int


@dataclass(frozen=True, slots=True)
class JudgeStep(Judge):
    """Ask the hooks about a step with all results; `calls` are those it asked for."""

    step: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class JudgeAnswer(Judge):
    """Ask the hooks about an answer that has not been sent."""

    text: str


Command: TypeAlias = AskModel | MakeCall | JudgeCall | JudgeStep | JudgeAnswer | Emit | Warn
