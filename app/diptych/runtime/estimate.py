"""What a request to the model will use at most, as far as a process has seen any."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diptych.loop.budget import Budget, Prices, SharedBudgets
from diptych.loop.commands import AskModel
from diptych.loop.messages import NO_USE, Usage, Used
from diptych.loop.tokens import most_weight
from diptych.ports.budgets import Account

CALLS_AHEAD = 8  # requests to the model, and as many calls of tools, that a run reserves at once
MARGINS = {"perSession": 2, "perDay": 8}
"""How many runs could have credit at once: so often its amount must fit below 80 % of each limit,
beside what is used and reserved. So a few runs do not hold what others wait for. A session executes
one run at a time, which may have a former owner."""
_REPLY_TOKENS = 4_096  # that a reply may have, until a longer one came, if nothing bounds it
_UNKNOWN_OVERHEAD = 4_096  # tokens of a prompt beyond its weight, until something is known
_TELLING_WEIGHT = 200  # of a prompt: a shorter one is mostly the template
_MOST_BOUNDS = 1_000  # that are remembered


@dataclass(frozen=True, slots=True)
class Bound:
    """What a request of some size uses at most: tokens of its `prompt`, and of its `reply`.

    `ahead` is what `CALLS_AHEAD` of them use, of whatever purpose, each with a call of a tool. Of
    its tokens `replies_ahead` at most are for replies; its money is enough for any such division.
    `far_budgets` are, by their scopes, 80 % of the shared budgets less `MARGINS` times `ahead`: a
    run may have credit while something is left of these, so that whoever watches is warned in
    time. None if one of them has a limit that is not above 0.
    """

    prompt: int
    reply: int
    replies_ahead: int
    ahead: Used
    far_budgets: Mapping[str, Budget] | None

    def far_accounts(
        self, accounts: Sequence[Account], known: Sequence[Used]
    ) -> Sequence[Account] | None:
        """Give accounts with their `far_budgets`; None if nothing is left of what is `known`."""
        if (budgets := self.far_budgets) is None:
            return None
        found = []
        for account, used in zip(accounts, known, strict=True):
            budget = budgets[account.scope]
            if used is not NO_USE and not budget.is_left(used):
                return None
            found.append(Account(account.scope, account.key, budget, account.seconds))
        return found


@dataclass
class Estimate:
    """How large requests and replies turned out to be, over all runs of a process.

    `prices`, `reply_tokens`, the bound of a reply, and `budgets` are the manifest's. What an
    endpoint adds to a request is not known before a request was weighed, or took more than was
    reserved for it.
    """

    prices: Prices
    reply_tokens: int | None = None
    budgets: SharedBudgets = field(default_factory=SharedBudgets)
    overhead: int | None = None  # tokens of a prompt beyond our estimate
    factor: float = 1.0  # tokens of a unit of weight, of prompts that are long enough to say so
    longest: int = 0  # of the replies
    _bounds: dict[tuple[int, int], Bound] = field(default_factory=dict, init=False)

    def prompt_at_most(self, weight: int) -> int:
        """Give the tokens of a prompt of a weight, or a bound of it, as far as one knows."""
        overhead = _UNKNOWN_OVERHEAD if self.overhead is None else self.overhead
        return max(weight + overhead, math.ceil(weight * self.factor))

    def bound(self, command: AskModel) -> Bound:
        """Give what a request uses at most, which need not be weighed for that.

        Its weight is bounded by the next power of two: so few bounds are ever computed.
        """
        request, weight = command.request, command.weight
        reply = request.parameters.get("max_tokens", self.reply_tokens)
        if not isinstance(reply, int):
            reply = max(_REPLY_TOKENS, self.longest)
        size = (most_weight(request) if weight is None else weight).bit_length()
        found = self._bounds.get((size, reply))
        if found is None:
            if len(self._bounds) >= _MOST_BOUNDS:
                self._bounds.clear()
            self._bounds[size, reply] = found = self._new_bound(2**size, reply)
        return found

    def _new_bound(self, weight: int, reply: int) -> Bound:
        prompt, n = self.prompt_at_most(weight), CALLS_AHEAD
        of_prompt, _ = self.prices.of_one
        cost = (of_prompt * prompt + self.prices.dearest * reply) * n
        ahead = Used((prompt + reply) * n, cost, n, n, n)
        budgets = {"perSession": self.budgets.per_session, "perDay": self.budgets.per_day}
        far = {scope: b.warned.less(ahead, MARGINS[scope]) for scope, b in budgets.items()}
        is_never = any(limit <= 0 for budget in far.values() for _, limit in budget.limits)
        return Bound(prompt, reply, reply * n, ahead, None if is_never else far)

    def amount(
        self, prompt: int, reply: int, requests: int = 1, tool_calls: int = 0, steps: int = 0
    ) -> Used:
        """Give what is used with so many tokens of prompts and of replies."""
        of_prompt, of_reply = self.prices.of_one
        cost = of_prompt * prompt + of_reply * reply
        return Used(prompt + reply, cost, requests, tool_calls, steps)

    def learn(self, weight: int | None, used: Usage) -> None:
        """Learn from a reply, and from the weight of its request if that was weighed."""
        self.longest = max(self.longest, used.completion_tokens)
        if weight is None:
            return
        known = self.overhead, self.factor
        self.overhead = max(self.overhead or 0, used.prompt_tokens - weight)
        if weight >= _TELLING_WEIGHT:
            self.factor = max(self.factor, used.prompt_tokens / weight)
        if known != (self.overhead, self.factor):
            self._bounds.clear()
