"""What a run holds of shared budgets for its next calls, so that not each of them asks the ledger.

Only far from the end of all limits: there nobody waits for what others hold. All that a call may
use is reserved before it is made, as it is without credit.

Not here: when it is taken and returned (`shared_budget_meter`), how much it is (`estimate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import ge

from diptych.loop.messages import Used
from diptych.ports.budgets import Account
from diptych.runtime.estimate import Bound, Estimate
from diptych.runtime.run_meter import ModelCall


@dataclass(slots=True)
class Credit:
    """A reservation of `accounts` for several calls, and what they have used of it.

    It is for what `bound` has `ahead`. Prompts may be larger where replies are smaller: a
    conversation grows. `in_flight` is the request that is under way; others have `replied`, or were
    `cut_off`, and so are on no record. `is_idle`: nothing was called since whoever watches has
    looked.
    """

    accounts: Sequence[Account]
    entry: str
    bound: Bound
    in_flight: ModelCall | None = None
    prompts: int = 0  # tokens
    replies: int = 0  # tokens
    requests: int = 0
    steps: int = 0
    tool_calls: int = 0
    replied: list[ModelCall] = field(default_factory=list)
    cut_off: list[ModelCall] = field(default_factory=list)
    is_idle: bool = False

    def covers(self, bound: Bound) -> bool:
        """Whether one more request is reserved, beside what was used and what is under way."""
        prompts, replies = self.prompts + bound.prompt, self.replies + bound.reply
        requests = self.requests + 1
        if late := self.in_flight:
            prompts, replies, requests = prompts + late.prompt, replies + late.reply, requests + 1
        return requests <= self.bound.ahead.model_calls and self._has_lent(prompts, replies)

    def covers_call(self) -> bool:
        """Whether one more call of a tool is reserved."""
        return self.tool_calls < self.bound.ahead.tool_calls

    def take_call(self) -> None:
        """Note that a tool is called."""
        self.tool_calls += 1
        self.is_idle = False

    def take(self, call: ModelCall, error: BaseException | None = None) -> None:
        """Note that a request has ended, and what it has used if a reply counts."""
        self.is_idle = False
        if self.in_flight is call:
            self.in_flight = None
        if (used := call.used) is not None:
            self.prompts += used.prompt_tokens
            self.replies += used.completion_tokens
            self.requests += 1
            self.steps += call.is_step
            (self.replied if error is None else self.cut_off).append(call)

    def unrecorded(self, count: int) -> list[ModelCall]:
        """Give the requests that are on no record, if the last `count` of the replies are not."""
        return self.cut_off + (self.replied[-count:] if count else [])

    def is_overdrawn(self) -> bool:
        """Whether more was used than is lent: replies were larger than ever before."""
        return not self._has_lent(self.prompts, self.replies)

    def _has_lent(self, prompts: int, replies: int) -> bool:
        """Whether so many tokens are lent, and with that what they cost (`Bound.ahead`)."""
        lent = self.bound
        return replies <= lent.replies_ahead and prompts + replies <= lent.ahead.tokens

    def used(self, estimate: Estimate) -> Used:
        """Give what was used of it all."""
        others = self.requests, self.tool_calls, self.steps
        return estimate.amount(self.prompts, self.replies, *others)


def comes_near(accounts: Sequence[Account], known: Sequence[Used], bound: Bound) -> bool:
    """Whether 80 % of a limit may be used if others hold as much: who watches is told at once.

    What is `known` to be used may be out of date: what is reserved is never more than there is.
    """
    for account, used in zip(accounts, known, strict=True):
        if True in map(ge, used, bound.far_below[account.scope]):  # type: ignore[arg-type]
            return True
    return False
