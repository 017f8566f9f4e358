"""The part of a manifest that says how much runs may use, and what a model costs."""

from decimal import Decimal
from typing import Annotated, TypeAlias

from pydantic import Field

from diptych.core.budget import MAX_COUNT
from diptych.manifest.fields import Duration, decimal, duration
from diptych.manifest.rules import StrictModel

Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Steps: TypeAlias = Annotated[int, Field(ge=1, le=10**9)]
LongDuration: TypeAlias = Annotated[float, duration("0s", "8760h")]
_DIGITS = "with at most 6 digits before the point and 6 after it"
Money: TypeAlias = Annotated[
    Decimal,
    decimal(6, f'must be a decimal above 0 as a string, such as "0.50", {_DIGITS}', above=0),
]
Price: TypeAlias = Annotated[
    Decimal, decimal(6, f'must be a decimal as a string, such as "0.25", {_DIGITS}')
]


class PricesSpec(StrictModel):
    """What a model's tokens cost, in the currency of the budgets."""

    input: Price
    """The price of a million tokens of prompts, as a string such as "0.25"."""
    output: Price
    """The price of a million tokens of replies, as a string such as "2.00"."""


class Limited(StrictModel):
    """The limits of every budget."""

    tokens: Count | None = None
    """Tokens of prompts and replies together, as the model counts them."""
    cost: Money | None = None
    """Money, as a string such as "0.50". It needs model.prices, and is in their currency."""
    model_calls: Steps | None = None
    """Requests to the model; one that is sent again after a failure counts once."""
    tool_calls: Steps | None = None
    """Calls of tools. A call beyond is denied, which the model reads as its result."""
    steps: Steps | None = None
    """Steps, of all turns."""


class SharedBudgetSpec(Limited):
    """What several runs may use together, over all replicas."""

    wall_clock: LongDuration | None = None
    """For how long runs may execute, added up."""


class BudgetSpec(Limited):
    """How much one run may use, with all that its delegations use."""

    wall_clock: Duration | None = None
    """How long a run may take; the shorter of it and loop.deadline holds."""
    per_session: SharedBudgetSpec = Field(default_factory=SharedBudgetSpec)
    """How much all runs of a session may use together."""
    per_day: SharedBudgetSpec = Field(default_factory=SharedBudgetSpec)
    """How much all runs of the agent may use on a day, which begins at midnight UTC."""

    @property
    def has_cost(self) -> bool:
        """Whether money is limited somewhere."""
        return any(each.cost is not None for each in (self, self.per_session, self.per_day))
