"""Budgets: what a run, a session or a day may use, and what has been used. Values and arithmetic.

Money is decimal, never a float: a price is per million tokens, and has at most 6 decimals, so that
an amount has at most 12.
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
"""The most tokens, calls or steps that anybody may name: a manifest, a caller, an endpoint, another
agent. No run comes near it, and sums of thousands of them stay below 2**53, up to which JSON, Lua
and protobuf hold whole numbers exactly."""
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
"""Of a limit: who watches the run is told when so much of it is used."""
Amount: TypeAlias = int | Decimal
_NO_LIMITS: tuple[Amount, ...] = (2**63, Decimal("Infinity"), 2**63, 2**63, 2**63, 2**63)


@dataclass(frozen=True)
class Prices:
    """What a model costs, per million tokens, in whatever currency the budget is in."""

    input: Decimal = Decimal(0)
    output: Decimal = Decimal(0)

    def cost(self, usage: Usage) -> Decimal:
        """Return what tokens cost, exactly."""
        prompt, completion = self.of_one
        return prompt * usage.prompt_tokens + completion * usage.completion_tokens

    @cached_property
    def of_one(self) -> tuple[Decimal, Decimal]:
        """What one token of a prompt costs, and one of a reply."""
        return self.input / MILLION, self.output / MILLION


@dataclass(frozen=True)
class Budget:
    """How much may be used; None is no limit. `wall_clock` is in ms.

    That of a run has no `wall_clock`: a run has a deadline.
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
        """Each limit that there is, with its name; each call asks for them several times."""
        found = ((name, getattr(self, name)) for name in LIMITS)
        return tuple((name, limit) for name, limit in found if limit is not None)

    def tightened(self, other: "Budget") -> "Budget":
        """Return the smaller of two limits, each."""
        if not other:
            return self
        return Budget(*(_smaller(getattr(self, n), getattr(other, n)) for n in LIMITS))

    def left(self, used: Used) -> "Budget":
        """Return the remainder of each limit, at least 0."""
        return Budget(
            **{name: max(limit - getattr(used, name), limit * 0) for name, limit in self.limits}
        )

    def share(self, among: int) -> "Budget":
        """Return one of several even shares; what cannot be divided goes to the first."""
        return Budget(**{name: _share(limit, among) for name, limit in self.limits})

    def above_zero(self) -> "Budget":
        """Return the limits with the least that there is in place of nothing."""
        least: dict[str, Any] = {"cost": Decimal(1) / PICO}
        found: dict[str, Any] = {name: limit or least.get(name, 1) for name, limit in self.limits}
        return Budget(**found)

    def gone(self, used: Used, *names: Limit) -> Limit | None:
        """Name a limit of which nothing is left, one of `names` if there are any."""
        if self.is_left(used):
            return None
        for name, limit in self.limits:
            if getattr(used, name) >= limit and (not names or name in names):
                return name
        return None

    def is_left(self, used: Used) -> bool:
        """Whether something is left of each limit."""
        return True not in map(ge, used, self.ends)  # type: ignore[arg-type]

    def warnings(self, before: Used, after: Used) -> list[Limit]:
        """Name the limits of which 80 % are used after something, and were not before it."""
        due = zip(LIMITS, before, after, self.warned_at, strict=True)
        return [name for name, old, new, share in due if new >= share > old]

    def is_warned(self, used: Used) -> bool:
        """Whether 80 % of a limit are used."""
        return True in map(ge, used, self.warned_at)  # type: ignore[arg-type]

    @cached_property
    def encoded(self) -> dict[str, JSON]:
        """The limits as `encode_budget` gives them; nobody changes what it is."""
        return encode_budget(self)

    @cached_property
    def ends(self) -> tuple[Any, ...]:
        """At which nothing is left of each limit, by its place in `Used`."""
        limits = dict(self.limits)
        return tuple(limits.get(name, end) for name, end in zip(LIMITS, _NO_LIMITS, strict=True))

    @cached_property
    def in_integers(self) -> tuple[int | None, ...]:
        """The limits as `to_integers` gives what is used, None for none."""
        return tuple(_to_integer(getattr(self, name)) for name in LIMITS)

    @cached_property
    def warned_at(self) -> tuple[Any, ...]:
        """80 % of each limit, from which on there is a warning, by its place in `Used`."""
        return Budget(**{name: _warned_at(limit) for name, limit in self.limits}).ends


UNLIMITED = Budget()
"""No limit. It is one object for all runs without a budget: its limits are looked up once."""


@dataclass(frozen=True, slots=True)
class SharedBudgets:
    """What all runs of a session may use together, and all runs of the agent on one day (UTC)."""

    per_session: Budget = UNLIMITED
    per_day: Budget = UNLIMITED

    def __bool__(self) -> bool:
        return bool(self.per_session or self.per_day)


def to_integers(used: Used) -> list[int]:
    """Return usage as integers, in the order of `LIMITS`; money in units of 10^-12."""
    tokens, cost, *rest = used
    return [tokens, int(cost * PICO), *rest]


def from_integers(numbers: Iterable[int]) -> Used:
    """Read back what `to_integers` gave of what was used."""
    tokens, cost, *rest = numbers
    return Used(tokens, Decimal(cost) / PICO, *rest)


def limit_text(name: Limit, used: Used, budget: Budget) -> str:
    """Return how much of a limit is used: `1,204 of 1,000 tokens`."""
    words = {"cost": "in money", "wall_clock": "ms"}
    unit = words.get(name, name.replace("_", " "))
    return f"{_number(getattr(used, name))} of {_number(getattr(budget, name))} {unit}"


def encode_budget(budget: Budget | Used) -> dict[str, JSON]:
    """Return a budget or usage as JSON: money as a decimal string, without None."""
    found: dict[str, Any] = budget._asdict() if isinstance(budget, Used) else dict(budget.limits)
    if "cost" in found:
        found["cost"] = decimal_text(found["cost"])
    return found


def decode_budget(stored: Mapping[str, Any]) -> Budget:
    """Read back what `encode_budget` gave of a budget."""
    return Budget(**_with_decimals(stored)) if stored else UNLIMITED


def decode_used(stored: Mapping[str, Any]) -> Used:
    """Read back what `encode_budget` gave of what was used."""
    return Used(**_with_decimals(stored))


def decimal_text(value: Decimal) -> str:
    """Write money without an exponent and without zeros at its end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _to_integer(limit: Amount | None) -> int | None:
    return int(limit * PICO) if isinstance(limit, Decimal) else limit


def _warned_at(limit: Amount) -> Any:  # noqa: ANN401 - as the fields are
    """Return 80 % of a limit; of a whole number the next whole one, as Decimals compare slowly."""
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
