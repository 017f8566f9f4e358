"""The settings of a run, which come from the manifest."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.core.budget import UNLIMITED, Budget, Prices
from diptych.core.messages import JSONObject

OnMaxSteps: TypeAlias = Literal["stop", "answer"]
AnswerMode: TypeAlias = Literal["separate", "direct"]
ActionFormat: TypeAlias = Literal["json", "native", "auto"]
QueueMode: TypeAlias = Literal["one", "all"]
HookPoint: TypeAlias = Literal["beforeCall", "afterCall", "afterStep", "validateAnswer"]
"""The points of a run at which hooks are called."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """An agent's settings for its runs, from the manifest; fixed when a run starts.

    `action_format` `auto` means native until the endpoint refuses it. `queue_mode` says how many
    queued messages join at a time. `prices` is None unless money is counted.
    """

    max_steps: int = 5
    on_max_steps: OnMaxSteps = "stop"
    max_retries: int = 3
    max_calls_per_step: int = 16
    max_parallel_calls: int = 8
    memory_context_limit: int = 6
    answer_mode: AnswerMode = "separate"
    answer_repairs: int = 2
    output_schema: JSONObject | None = None
    action_format: ActionFormat = "json"
    queue_mode: QueueMode = "one"
    hooks: tuple[HookPoint, ...] = ()
    budget: Budget = UNLIMITED
    prices: Prices | None = None
