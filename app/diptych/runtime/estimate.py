"""What a request to the model will use at most, as far as a process has seen any.

Not here: reserving it (`shared_budget_meter`), the weight of a request (`loop.tokens`).
"""

import math
from dataclasses import dataclass, field

from diptych.loop.budget import Prices
from diptych.loop.commands import AskModel, Purpose
from diptych.loop.messages import Usage, Used
from diptych.loop.tokens import most_weight

_REPLY_TOKENS = 4_096  # that a reply may have, until a longer one came, if nothing bounds it
_UNKNOWN_OVERHEAD = 4_096  # tokens of a prompt beyond its weight, until something is known
_TELLING_WEIGHT = 200  # of a prompt: a shorter one is mostly the template
_MOST_ROUGH = 1_000  # amounts that are remembered


@dataclass
class Estimate:
    """How large requests and replies turned out to be, over all runs of a process.

    `prices` and `reply_tokens`, the bound of a reply, are the manifest's. What an endpoint adds to
    a request is not known before a request was weighed, or took more than was reserved for it.
    """

    prices: Prices
    reply_tokens: int | None = None
    overhead: int | None = None  # tokens of a prompt beyond our estimate
    factor: float = 1.0  # tokens of a unit of weight, of prompts that are long enough to say so
    longest: int = 0  # of the replies
    _rough: dict[tuple[int, int, Purpose], Used] = field(default_factory=dict, init=False)

    def at_most(self, command: AskModel, weight: int) -> Used:
        """Give what a request of a weight, or a bound of it, uses at most, as far as one knows."""
        overhead = _UNKNOWN_OVERHEAD if self.overhead is None else self.overhead
        prompt = max(weight + overhead, math.ceil(weight * self.factor))
        return self.amount(command, prompt, self._most_of_reply(command))

    def roughly_at_most(self, command: AskModel) -> Used:
        """Give a bound of what a request uses at most, which need not be weighed for that.

        Its weight is bounded, and rounded up to a power of two: so few amounts are ever computed.
        """
        weight = most_weight(command.request) if command.weight is None else command.weight
        key = weight.bit_length(), self._most_of_reply(command), command.purpose
        found = self._rough.get(key)
        if found is None:
            if len(self._rough) >= _MOST_ROUGH:
                self._rough.clear()
            self._rough[key] = found = self.at_most(command, 2 ** key[0])
        return found

    def _most_of_reply(self, command: AskModel) -> int:
        bound = command.request.parameters.get("max_tokens", self.reply_tokens)
        return bound if isinstance(bound, int) else max(_REPLY_TOKENS, self.longest)

    def amount(self, command: AskModel, prompt: int, reply: int) -> Used:
        """Give what a request uses that has so many tokens."""
        of_prompt, of_reply = self.prices.of_one
        is_step = command.purpose in ("actions", "either")
        return Used(prompt + reply, of_prompt * prompt + of_reply * reply, 1, 0, int(is_step))

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
            self._rough.clear()
