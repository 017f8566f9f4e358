"""One request to the model, from the reservation of what it will use until that is settled.

Not here: how much that is, and of which accounts (`shared_budget_meter`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from diptych.loop.commands import AskModel
from diptych.loop.messages import Usage
from diptych.ports.budgets import Account
from diptych.runtime.run_meter import ModelCall


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is reserved of some accounts; `is_step` says whether it counts as a step."""

    accounts: Sequence[Account]
    entry: str
    is_step: bool


class CallMeter(Protocol):
    """What counts the requests of a run; see `SharedBudgetMeter`."""

    async def reserve(self, command: AskModel, sent: int) -> Reservation:
        """Reserve what a request of the weight `sent` will use. Raises `BudgetRefused`."""
        ...

    async def settle(self, reserved: Reservation, used: Usage | None) -> None:
        """Settle what a request has used; None if nothing, as it failed."""
        ...

    def learn(self, sent: int, used: Usage) -> None:
        """Learn from a reply to a request of the weight `sent`."""
        ...


class MeteredCall(AbstractAsyncContextManager[ModelCall]):
    """A request to the model, from its reservation until it is settled."""

    def __init__(self, meter: CallMeter, command: AskModel) -> None:
        self._meter = meter
        self._command = command
        self._call = ModelCall(command)

    async def __aenter__(self) -> ModelCall:
        self._sent = self._call.request_tokens
        self._reserved = await self._meter.reserve(self._command, self._sent)
        return self._call

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        call, sent = self._call, self._sent
        if isinstance(error, asyncio.CancelledError):
            call.used = Usage(sent)  # its server has read the request, and maybe charged it
        await self._meter.settle(self._reserved, call.used)
        if call.used is not None and error is None:
            self._meter.learn(sent, call.used)
