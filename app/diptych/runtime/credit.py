"""What a run may use of shared budgets with its next calls, so that not each asks the ledger.

Only far from the end of all limits, where few wait for what others reserve. All that a call may
use, as far as one knows, is reserved before it is made, as it is without credit.
"""

import asyncio
from collections.abc import Sequence

from diptych.loop.messages import Used
from diptych.ports.budgets import Account
from diptych.runtime.agent_ledger import Reservation
from diptych.runtime.estimate import Bound, Estimate
from diptych.runtime.run_meter import STEPS, ModelCall


class Credit:
    """A reservation of a run for several calls: what is left of it, and what was used of it.

    It is for what `bound` has `ahead`. Prompts may be larger where replies are smaller: a
    conversation grows. `in_flight` is the request that is under way (a run has one at a time), at
    first the one that the credit was asked for; others have `replied`, or were `cut_off`, and so
    are on no record.
    `is_idle`: nothing was called since whoever watches has looked. `of_day` is what is known to be
    used of the day (`AgentLedger`).
    """

    __slots__ = (
        "_far_budgets",
        "_of_day",
        "cut_off",
        "in_flight",
        "is_idle",
        "replied",
        "replies_left",
        "requests_left",
        "reservation",
        "tokens_left",
        "tool_calls",
        "tool_calls_left",
    )

    def __init__(
        self,
        reservation: Reservation,
        bound: Bound,
        in_flight: ModelCall | None = None,
        of_day: tuple[Account, Used] | None = None,
    ) -> None:
        self.reservation = reservation
        whole = bound.ahead
        self.requests_left, self.tool_calls_left = whole.model_calls, whole.tool_calls
        self.tokens_left, self.replies_left = whole.tokens, bound.replies_ahead
        self.in_flight = in_flight
        self.replied: list[ModelCall] = []
        self.cut_off: list[ModelCall] = []
        self.tool_calls = 0
        self.is_idle = False
        self._far_budgets = bound.far_budgets or {}
        self._of_day = of_day

    def is_near(self, of_day: tuple[Account, Used] | None) -> bool:
        """Whether others have used so much of the day meanwhile that it may come to 80 %.

        Then what was used of the credit is to be settled before the run ends: who watches it is
        still told. `of_day` is what this process knows.
        """
        if of_day is self._of_day or of_day is None:
            return False
        self._of_day = of_day
        account, used = of_day
        is_today = account is self.reservation.accounts[-1]
        return is_today and not self._far_budgets[account.scope].is_left(used)

    def take_request(self, call: ModelCall) -> bool:
        """Draw on the credit for one more request; gives whether it could.

        That is to be reserved beside what was used, for the same day, and must not have run out.
        """
        whole, now = self.reservation, asyncio.get_running_loop().time()
        if (
            self.in_flight is not None
            or self.requests_left <= 0
            or call.reply > self.replies_left
            or call.prompt + call.reply > self.tokens_left
            or now >= whole.until
            or call.accounts is not whole.accounts
        ):
            return False
        self.in_flight, call.entry = call, whole.entry
        return True

    def take_tool_call(self, accounts: Sequence[Account]) -> bool:
        """Draw on the credit for a call of a tool; gives whether it could."""
        whole, now = self.reservation, asyncio.get_running_loop().time()
        if self.tool_calls_left <= 0 or now >= whole.until or accounts is not whole.accounts:
            return False
        self.tool_calls += 1
        self.tool_calls_left -= 1
        self.is_idle = False
        return True

    def end_request(self, call: ModelCall, error: BaseException | None = None) -> bool:
        """Note that a request has ended, and what it has used if a reply counts.

        Gives whether no more was used than is reserved: prompts and replies may have been larger
        than they were bounded.
        """
        self.is_idle = False
        self.in_flight = None
        if (used := call.usage) is not None:
            (self.replied if error is None else self.cut_off).append(call)
            self.requests_left -= 1
            self.replies_left -= used.completion_tokens
            self.tokens_left -= used.prompt_tokens + used.completion_tokens
        return self.tokens_left >= 0 and self.replies_left >= 0

    def unrecorded(self, count: int) -> list[ModelCall]:
        """Give the requests that are on no record, if the last `count` of the replies are not."""
        return self.cut_off + (self.replied[-count:] if count else [])

    def used(self, estimate: Estimate) -> Used:
        """Give what the run has used of it: what is to be settled."""
        prompts = replies = steps = 0
        calls = self.replied + self.cut_off
        for call in calls:
            if used := call.usage:
                prompts += used.prompt_tokens
                replies += used.completion_tokens
                steps += call.command.purpose in STEPS
        return estimate.amount(prompts, replies, len(calls), self.tool_calls, steps)
