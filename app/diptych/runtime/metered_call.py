"""One request to the model, from the reservation of what it will use until that is settled.

Not here: how much that is, and of which accounts (`shared_budget_meter`).
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from diptych.loop.commands import AskModel
from diptych.loop.messages import Usage
from diptych.ports.budgets import Account
from diptych.runtime.run_meter import ModelCall


class CallMeter(Protocol):
    """What counts the requests of a run; see `SharedBudgetMeter`."""

    async def reserve(self, call: "MeteredCall") -> None:
        """Reserve what a request will use, and note that in it. Raises `BudgetRefused`."""
        ...

    async def settle(self, call: "MeteredCall", *, has_failed: bool) -> None:
        """Settle what a request has used, and learn from its reply."""
        ...


class MeteredCall(ModelCall):
    """A request to the model, from its reservation until it is settled.

    It was `sent` with this weight; `entry` is reserved of `accounts`.
    """

    sent: int
    accounts: Sequence[Account]
    entry: str

    def __init__(self, meter: CallMeter, command: AskModel) -> None:
        self.command = command
        self.used = None
        self._meter = meter

    async def __aenter__(self) -> ModelCall:
        await self._meter.reserve(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.used = Usage(self.sent)  # its server has read it, and maybe charged it
        await self._meter.settle(self, has_failed=error is not None)
