"""What a run holds of shared budgets for its next calls, so that not each of them asks the ledger.

Only far from the end of all limits, where few wait for what others hold. All that a call may use,
as far as one knows, is reserved before it is made, as it is without credit.

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
    prompt_tokens: int = 0
    reply_tokens: int = 0
    requests: int = 0
    steps: int = 0
    tool_calls: int = 0
    replied: list[ModelCall] = field(default_factory=list)
    cut_off: list[ModelCall] = field(default_factory=list)
    is_idle: bool = False

    def covers_request(self, bound: Bound) -> bool:
        """Whether one more request is reserved, beside what was used and what is under way."""
        prompts, replies = self.prompt_tokens + bound.prompt, self.reply_tokens + bound.reply
        requests = self.requests + 1
        if other := self.in_flight:
            prompts, replies, requests = prompts + other.prompt, replies + other.reply, requests + 1
        return requests <= self.bound.ahead.model_calls and self._contains(prompts, replies)

    def covers_tool_call(self) -> bool:
        """Whether one more call of a tool is reserved."""
        return self.tool_calls < self.bound.ahead.tool_calls

    def take_tool_call(self) -> None:
        """Note that a tool is called."""
        self.tool_calls += 1
        self.is_idle = False

    def end_request(self, call: ModelCall, error: BaseException | None = None) -> None:
        """Note that a request has ended, and what it has used if a reply counts."""
        self.is_idle = False
        if self.in_flight is call:
            self.in_flight = None
        if (used := call.used) is not None:
            self.prompt_tokens += used.prompt_tokens
            self.reply_tokens += used.completion_tokens
            self.requests += 1
            self.steps += call.is_step
            (self.replied if error is None else self.cut_off).append(call)

    def unrecorded(self, count: int) -> list[ModelCall]:
        """Give the requests that are on no record, if the last `count` of the replies are not."""
        return self.cut_off + (self.replied[-count:] if count else [])

    def is_overdrawn(self) -> bool:
        """Whether more was used than is lent: prompts or replies were larger than their bound."""
        return not self._contains(self.prompt_tokens, self.reply_tokens)

    def _contains(self, prompts: int, replies: int) -> bool:
        """Whether so many tokens are lent, and with that what they cost (`Bound.ahead`)."""
        lent = self.bound
        return replies <= lent.replies_ahead and prompts + replies <= lent.ahead.tokens

    def used(self, estimate: Estimate) -> Used:
        """Give what was used of it all."""
        others = self.requests, self.tool_calls, self.steps
        return estimate.amount(self.prompt_tokens, self.reply_tokens, *others)


def comes_near(accounts: Sequence[Account], known: Sequence[Used], bound: Bound) -> bool:
    """Whether 80 % of a limit would be used if others used as much, too (`estimate.MARGINS`).

    Then there is no credit, so that whoever watches is warned in time. What is `known` to be used
    may be out of date: the ledger never reserves more than there is.
    """
    for account, used in zip(accounts, known, strict=True):
        if True in map(ge, used, bound.far_below[account.scope]):  # type: ignore[arg-type]
            return True
    return False
