"""The settings of a run, from the manifest, and their form on record, with its `Offered`.

On record a new setting is left out at its default: a replica of an older version, which cannot
take over a run with a setting that it does not know, can then take over all runs without it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from diptych.core.budget import (
    UNLIMITED,
    Budget,
    Prices,
    decimal_text,
    decode_budget,
)
from diptych.core.messages import JSON, JSONObject
from diptych.core.reading import RULES_0_1, Rules

OnMaxSteps: TypeAlias = Literal["stop", "answer"]
AnswerMode: TypeAlias = Literal["separate", "direct"]
ActionFormat: TypeAlias = Literal["json", "native", "auto"]
QueueMode: TypeAlias = Literal["one", "all"]
HookPoint: TypeAlias = Literal["beforeCall", "afterCall", "afterStep", "validateAnswer"]
"""Where in a run hooks are asked."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What is set for every run of an agent, and fixed when the run starts.

    From the manifest: its bounds (`spec.loop`); `action_format` (`spec.model`), where `auto` means
    native calls until the endpoint refuses them; `queue_mode` (`spec.sessions`), how many queued
    messages join at a time; `output_schema`; the points at which `hooks` are asked; the `budget` of
    each run, and the model's `prices` if money is counted.
    `reply_rules` is from nowhere: 2 are the rules of loop.md §3 by which the run's replies are
    read, 1 those of version 0.1, whose records have no such field.
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
    reply_rules: int = 2
    action_format: ActionFormat = "json"
    queue_mode: QueueMode = "one"
    hooks: tuple[HookPoint, ...] = ()
    budget: Budget = UNLIMITED
    prices: Prices | None = None

    @property
    def rules(self) -> Rules:
        """The rules by which the run's replies are read."""
        return RULES_0_1 if self.reply_rules == 1 else Rules(self.max_calls_per_step)


_ALWAYS_RECORDED = frozenset(
    {
        "max_steps",
        "on_max_steps",
        "max_retries",
        "max_calls_per_step",
        "max_parallel_calls",
        "memory_context_limit",
        "answer_mode",
        "answer_repairs",
        "output_schema",
        "reply_rules",
        "action_format",
        "queue_mode",
    }
)
"""The settings that are on record also at their default. A new one never joins them."""

_BEFORE: Mapping[str, Any] = {"reply_rules": 1, "queue_mode": "all"}
"""The settings of a run whose record has no such field: of version 0.1, and before queues."""


def encode_settings(settings: RunSettings) -> dict[str, Any]:
    """Give settings as JSON, as they are kept with a run's catalog."""
    stored, defaults = asdict(settings), type(settings)()
    for name in stored.keys() - _ALWAYS_RECORDED:
        if getattr(settings, name) == getattr(defaults, name):
            del stored[name]
    return stored | budget_terms(settings)


def budget_terms(settings: RunSettings) -> dict[str, JSON]:
    """Give budget and prices as JSON; nothing where there are none."""
    terms: dict[str, JSON] = {}
    if settings.budget:
        terms["budget"] = settings.budget.encoded
    if prices := settings.prices:
        terms["prices"] = [decimal_text(prices.input), decimal_text(prices.output)]
    return terms


def read_prices(stored: Mapping[str, Any]) -> Prices | None:
    """Read the prices of `budget_terms` back."""
    return Prices(*map(Decimal, stored["prices"])) if "prices" in stored else None


def decode_settings(stored: Mapping[str, Any]) -> RunSettings:
    """Read settings back. Raises `TypeError` for one that this version does not know."""
    known = {**_BEFORE, **stored}
    known["hooks"] = tuple(known.get("hooks", ()))
    known["budget"] = decode_budget(known.get("budget", {}))
    return RunSettings(**{**known, "prices": read_prices(stored)})
