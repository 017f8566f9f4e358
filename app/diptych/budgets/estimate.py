"""What a request to the model will use at most, as far as a process has seen any."""

import math
from dataclasses import dataclass

from diptych.core.budget import Prices
from diptych.core.commands import AskModel
from diptych.core.messages import Usage, Used

_REPLY_TOKENS = 4_096  # that a reply may have, until a longer one came, if nothing bounds it
_UNKNOWN_OVERHEAD = 4_096  # tokens of a prompt beyond its weight, until something is known
_TELLING_WEIGHT = 200  # of a prompt: a shorter one is mostly the template


@dataclass
class Estimate:
    """How large requests and replies turned out to be, over all runs of a process.

    `prices`, and `reply_tokens`, the bound of a reply, are the manifest's. What an endpoint adds to
    a request is not known before the first reply.
    """

    prices: Prices
    reply_tokens: int | None = None
    overhead: int | None = None  # tokens of a prompt beyond our estimate
    factor: float = 1.0  # tokens of a unit of weight, of prompts that are long enough to say so
    longest: int = 0  # of the replies

    def prompt_at_most(self, weight: int) -> int:
        """Return a bound of the tokens of a prompt of this weight."""
        overhead = _UNKNOWN_OVERHEAD if self.overhead is None else self.overhead
        return max(weight + overhead, math.ceil(weight * self.factor))

    def reply_at_most(self, command: AskModel) -> int:
        """Return a bound of the tokens of a reply."""
        bound = command.request.parameters.get("max_tokens", self.reply_tokens)
        return bound if isinstance(bound, int) else max(_REPLY_TOKENS, self.longest)

    def amount(self, prompt: int, reply: int, *, steps: int = 0) -> Used:
        """Return what one request uses, by the tokens of its prompt and its reply."""
        of_prompt, of_reply = self.prices.of_one
        cost = of_prompt * prompt + of_reply * reply
        return Used(prompt + reply, cost, model_calls=1, steps=steps)

    def learn(self, weight: int, used: Usage) -> None:
        """Learn from a reply, and from the weight of its request."""
        self.longest = max(self.longest, used.completion_tokens)
        self.overhead = max(self.overhead or 0, used.prompt_tokens - weight)
        if weight >= _TELLING_WEIGHT:
            self.factor = max(self.factor, used.prompt_tokens / weight)
