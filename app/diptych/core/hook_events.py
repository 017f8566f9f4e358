"""The events of hooks: what somebody's code said of a call, of a step or of an answer."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.core.messages import Call

HookPoint: TypeAlias = Literal["beforeCall", "afterCall", "afterStep", "validateAnswer"]
"""Where in a run hooks are asked."""


@dataclass(frozen=True, slots=True)
class CallJudged:
    """The hooks have seen a call that is ready.

    `call` is what is made in its place, under the same id, if one of them rewrote it. If one of
    them denied it, `denied` is its reason. `hook` is the name of who did the one or the other.
    """

    call_id: str
    call: Call | None = None
    denied: str | None = None
    hook: str = ""


@dataclass(frozen=True, slots=True)
class StepJudged:
    """The hooks have seen a step and its results; if it `ends`, so does phase 1, as `hook` says."""

    step: int
    ends: bool = False
    hook: str = ""


@dataclass(frozen=True, slots=True)
class AnswerJudged:
    """The hooks have seen an answer; what `hook` finds wrong with it is a `problem`, else ""."""

    problem: str = ""
    hook: str = ""


HookEvent: TypeAlias = CallJudged | StepJudged | AnswerJudged
