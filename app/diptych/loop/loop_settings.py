"""The settings of a run, from the manifest; `events` gives them to whoever knows events.

Not here: what they are on record (`settings_json`), their form in a manifest (`config.manifest`).
"""

from dataclasses import dataclass
from typing import Literal

from diptych.loop.actions import RULES_0_1, Rules
from diptych.loop.budget import UNLIMITED, Budget, Prices
from diptych.loop.hook_events import HookPoint
from diptych.loop.messages import JSONObject


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The bounds of a run, from the manifest's `loop`; fixed when it starts.

    `action_format` is the manifest's `model.actionFormat`; `auto` means native calls, until the
    endpoint refuses them. `queue_mode` says how many of the messages that wait join at a time,
    `hooks` where hooks are asked.
    `reply_rules` is no bound: 2 are the rules of loop.md §3 by which the run's replies are read, 1
    those of version 0.1, whose records have no such field. `budget` is that of each run, and
    `prices` are those of the model, if money is counted.
    """

    max_steps: int = 5
    on_max_steps: Literal["stop", "answer"] = "stop"
    max_retries: int = 3
    max_calls_per_step: int = 16
    max_parallel_calls: int = 8
    memory_context_limit: int = 6
    answer_mode: Literal["separate", "direct"] = "separate"
    answer_repairs: int = 2
    output_schema: JSONObject | None = None
    reply_rules: int = 2
    action_format: Literal["json", "native", "auto"] = "json"
    queue_mode: Literal["one", "all"] = "one"
    hooks: tuple[HookPoint, ...] = ()
    budget: Budget = UNLIMITED
    prices: Prices | None = None

    @property
    def rules(self) -> Rules:
        """The rules by which the run's replies are read."""
        return RULES_0_1 if self.reply_rules == 1 else Rules(self.max_calls_per_step)
