"""The commands of a run: imperatives, which `runs.runner` carries out."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.core.events import Event
from diptych.core.messages import Call
from diptych.core.model_request import ModelRequest

Purpose = Literal["actions", "answer", "either", "summary"]
"""What a model is asked for. `either` are actions or the answer (`answerMode: direct`); a summary
is of its own conversation (loop.md §11)."""


@dataclass(frozen=True, slots=True)
class AskModel:
    """Send this request to the model; stream its reply if the command `is_streamed`.

    `recorded` is the logged text of an answer that was cut off and is asked for again. If the
    endpoint refuses the request's tools, the run fails, unless it `may_change_format`. `keeps` is
    that of the summary, if one is asked for. `weight` is the request's, None if it was not weighed.
    """

    request: ModelRequest
    purpose: Purpose
    recorded: str = ""
    may_change_format: bool = False
    keeps: int = 0
    weight: int | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether its reply is, or may be, the answer."""
        return self.purpose in ("answer", "either")


@dataclass(frozen=True, slots=True)
class MakeCall:
    """Make this call; its references are filled and its arguments valid.

    With `is_retry` its start is in the log already, and it is safe to make twice; a delegation is
    not sent again, but taken up by its context. One that `is_approved` is not asked about again.
    """

    call: Call
    step: int
    is_retry: bool = False
    is_approved: bool = False


@dataclass(frozen=True, slots=True)
class Emit:
    """Record this event, which follows from the one before, and apply it."""

    event: Event


@dataclass(frozen=True, slots=True)
class Warn:
    """Send the notice `format_warning`: a reply was not what it should be."""

    text: str


class Judge:
    """Ask the hooks."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JudgeCall(Judge):
    """Ask the hooks about this call; its references are filled and its arguments valid."""

    call: Call
    step: int


@dataclass(frozen=True, slots=True)
class JudgeStep(Judge):
    """Ask the hooks about a step whose results are all there; `calls` are what it asked for."""

    step: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class JudgeAnswer(Judge):
    """Ask the hooks about this answer, which nobody has been told."""

    text: str


Command: TypeAlias = AskModel | MakeCall | JudgeCall | JudgeStep | JudgeAnswer | Emit | Warn
