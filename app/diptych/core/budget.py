"""Budgets: limits for a run, a session or a day, and usage, with their arithmetic.

Money is Decimal. Prices are per million tokens with at most 6 decimals, so amounts have at most 12.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from functools import cached_property
from math import ceil
from operator import ge
from typing import Any, Literal, TypeAlias

from diptych.core.messages import JSON, Usage, Used

MILLION, PICO = 10**6, 10**12
MAX_COUNT = 10**12
"""Upper bound on any count of tokens, calls or steps from a manifest, caller, endpoint or agent.
Sums of thousands stay below 2**53, so that JSON, Lua and protobuf represent them exactly."""
Limit: TypeAlias = Literal["tokens", "cost", "model_calls", "tool_calls", "steps", "wall_clock"]
LIMITS: tuple[Limit, ...] = (
    "tokens",
    "cost",
    "model_calls",
    "tool_calls",
    "steps",
    "wall_clock",
)
WARNING_SHARE = Decimal("0.8")
"""Share of a limit at which subscribers get a warning."""
Amount: TypeAlias = int | Decimal
_NO_LIMITS: tuple[Amount, ...] = (2**63, Decimal("Infinity"), 2**63, 2**63, 2**63, 2**63)


@dataclass(frozen=True)
class Prices:
    """A model's prices per million tokens, in the budget's currency."""

    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)

    def cost(self, usage: Usage) -> Decimal:
        """Return the exact cost of tokens."""
        prompt, completion = self.of_one
        return prompt * usage.prompt_tokens + completion * usage.completion_tokens

    @cached_property
    def of_one(self) -> tuple[Decimal, Decimal]:
        """The price of one prompt token, and of one reply token."""
        return self.input / MILLION, self.output / MILLION


@dataclass(frozen=True)
class Budget:
    """Limits; None is no limit. `wall_clock` is in ms.

    Runs have no `wall_clock`: they have a deadline instead.
    """

    tokens: int | None = None
    cost: Decimal | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    steps: int | None = None
    wall_clock: int | None = None

    def __bool__(self) -> bool:
        return bool(self.limits)

    @cached_property
    def limits(self) -> tuple[tuple[Limit, Amount], ...]:
        """The limits that are set, with their names; cached, as every call reads them."""
        found = ((name, getattr(self, name)) for name in LIMITS)
        return tuple((name, limit) for name, limit in found if limit is not None)

    def tightened(self, other: "Budget") -> "Budget":
        """Return the smaller of each pair of limits."""
        if not other:
            return self
        return Budget(*(_smaller(getattr(self, n), getattr(other, n)) for n in LIMITS))

    def left(self, used: Used) -> "Budget":
        """Return what remains of each limit, at least 0."""
        return Budget(
            **{name: max(limit - getattr(used, name), limit * 0) for name, limit in self.limits}
        )

    def share(self, among: int) -> "Budget":
        """Return one of `among` even shares; counts are rounded up, money down."""
        return Budget(**{name: _share(limit, among) for name, limit in self.limits})

    def above_zero(self) -> "Budget":
        """Return these limits with zeros replaced by the smallest positive amount."""
        least: dict[str, Any] = {"cost": Decimal(1) / PICO}
        found: dict[str, Any] = {name: limit or least.get(name, 1) for name, limit in self.limits}
        return Budget(**found)

    def gone(self, used: Used, *names: Limit) -> Limit | None:
        """Return the name of an exhausted limit, optionally only one of `names`."""
        if self.is_left(used):
            return None
        for name, limit in self.limits:
            if getattr(used, name) >= limit and (not names or name in names):
                return name
        return None

    def is_left(self, used: Used) -> bool:
        """Whether no limit is exhausted."""
        return True not in map(ge, used, self.ends)  # type: ignore[arg-type]

    def warnings(self, before: Used, after: Used) -> list[Limit]:
        """Return the limits whose warning threshold was crossed between two usages."""
        due = zip(LIMITS, before, after, self.warned_at, strict=True)
        return [name for name, old, new, share in due if new >= share > old]

    def is_warned(self, used: Used) -> bool:
        """Whether a limit's warning threshold is reached."""
        return True in map(ge, used, self.warned_at)  # type: ignore[arg-type]

    @cached_property
    def encoded(self) -> dict[str, JSON]:
        """The result of `encode_budget`; do not modify."""
        return encode_budget(self)

    @cached_property
    def ends(self) -> tuple[Any, ...]:
        """The limits in the order of `Used`, with a huge number for no limit."""
        limits = dict(self.limits)
        return tuple(limits.get(name, end) for name, end in zip(LIMITS, _NO_LIMITS, strict=True))

    @cached_property
    def warned_at(self) -> tuple[Any, ...]:
        """The warning thresholds in the order of `Used`."""
        return Budget(**{name: _warned_at(limit) for name, limit in self.limits}).ends


UNLIMITED = Budget()
"""No limits; one object for all runs without a budget, so that its cache is shared."""


@dataclass(frozen=True, slots=True)
class SharedBudgets:
    """Limits shared by all runs of a session, and by all runs of the agent on one day (UTC)."""

    per_session: Budget = UNLIMITED
    per_day: Budget = UNLIMITED

    def __bool__(self) -> bool:
        return bool(self.per_session or self.per_day)


def to_integers(used: Used) -> list[int]:
    """Return usage as integers in the order of `LIMITS`; money in units of 10^-12."""
    tokens, cost, *rest = used
    return [tokens, int(cost * PICO), *rest]


def from_integers(numbers: Iterable[int]) -> Used:
    """Reverse `to_integers`."""
    tokens, cost, *rest = numbers
    return Used(tokens, Decimal(cost) / PICO, *rest)


def limit_text(name: Limit, used: Used, budget: Budget) -> str:
    """Return the usage of a limit as text: `1,204 of 1,000 tokens`."""
    words = {"cost": "in money", "wall_clock": "ms"}
    unit = words.get(name, name.replace("_", " "))
    return f"{_number(getattr(used, name))} of {_number(getattr(budget, name))} {unit}"


def encode_budget(budget: Budget | Used) -> dict[str, JSON]:
    """Return a budget or usage as JSON without nulls; money is a decimal string."""
    found: dict[str, Any] = budget._asdict() if isinstance(budget, Used) else dict(budget.limits)
    if "cost" in found:
        found["cost"] = decimal_text(found["cost"])
    return found


def decode_budget(stored: Mapping[str, Any]) -> Budget:
    """Reverse `encode_budget` for a budget."""
    return Budget(**_with_decimals(stored)) if stored else UNLIMITED


def decode_used(stored: Mapping[str, Any]) -> Used:
    """Reverse `encode_budget` for usage."""
    return Used(**_with_decimals(stored))


def decimal_text(value: Decimal) -> str:
    """Format money without an exponent or trailing zeros."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _warned_at(limit: Amount) -> Any:  # noqa: ANN401 - as the fields are
    """Return 80 % of a limit; counts are rounded up to an int, as Decimals compare slowly."""
    return limit * WARNING_SHARE if isinstance(limit, Decimal) else ceil(limit * WARNING_SHARE)


def _with_decimals(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: Decimal(value) if name == "cost" else value for name, value in stored.items()}


def _smaller(one: Amount | None, other: Amount | None) -> Any:  # noqa: ANN401 - as the fields are
    return min((each for each in (one, other) if each is not None), default=None)


def _share(limit: Amount, among: int) -> Any:  # noqa: ANN401 - as the fields are
    if isinstance(limit, Decimal):
        return (limit / among).quantize(Decimal(1) / PICO, ROUND_DOWN)
    return -(-limit // among)


def _number(value: Amount) -> str:
    return decimal_text(value) if isinstance(value, Decimal) else f"{value:,}"
