"""What a run knows of its model's context window: how much fits, and how tokens are counted.

The window comes from the manifest, or from the model's own refusal; until one of them says it,
there is no limit. How many tokens a unit of weight is, is measured by the usage that the model
reports; until then a unit counts as one.
"""

from dataclasses import dataclass, replace
from typing import Final

MAX_REFUSALS: Final = 4
"""Requests in a row that a model may refuse as too long. They cost nothing; each is smaller."""
LEAST_LIMIT: Final = 512
"""Tokens: no window that is learned is smaller, nor one that a manifest sets."""
_LEAST_WEIGHT = 200  # of a request that says how tokens are counted: less is mostly the template
_LEAST_FACTOR, _GREATEST_FACTOR = 0.5, 8.0
_LESS, _MUCH_LESS = 0.75, 0.5  # of what was refused, where nobody says how much fits


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """A window of `limit` tokens, None if unknown; `factor` is the tokens of a unit of weight.

    `sent` is the weight of the newest request, `others` that of all in it but the conversation.
    `refusals` counts those since the newest reply; `has_compacted` says that the conversation was
    compacted since then.
    """

    limit: int | None = None
    factor: float = 1.0
    is_measured: bool = False
    sent: int = 0
    others: int = 0
    refusals: int = 0
    has_compacted: bool = False

    def weight(self, share: float) -> float:
        """The weight of a share of the window; infinite while the window is unknown."""
        return float("inf") if self.limit is None else self.limit * share / self.factor

    def tokens(self, weight: float) -> int:
        """Turn weight into tokens."""
        return round(weight * self.factor)

    def joined(self, other: "ContextWindow") -> "ContextWindow":
        """Return what both know, for another run: the smaller window, the newer measure."""
        limits = [w.limit for w in (self, other) if w.limit is not None]
        newest = other if other.is_measured else self
        return ContextWindow(min(limits, default=None), newest.factor, newest.is_measured)

    def replied(self, prompt_tokens: int) -> "ContextWindow":
        """Learn from a reply how tokens are counted; 0 means that the model does not say."""
        factor = _factor(prompt_tokens, self.sent)
        if factor is None:
            return replace(self, refusals=0, has_compacted=False)
        return replace(self, refusals=0, has_compacted=False, factor=factor, is_measured=True)

    def refused(
        self, sent: int, max_tokens: int | None, prompt_tokens: int | None
    ) -> "ContextWindow":
        """Learn from a refusal of a request of the weight `sent`.

        An endpoint that tells a number of tokens smaller than its window counts the reply's too.
        A window in which nothing has room is a mistake of the endpoint's, or of ours in reading it:
        it would make all later requests useless.
        """
        if max_tokens is not None and max_tokens < LEAST_LIMIT:
            max_tokens = None
        learned = replace(self, sent=sent, refusals=self.refusals + 1)
        tokens = prompt_tokens or 0
        if max_tokens and not prompt_tokens and self.tokens(sent) <= max_tokens:
            tokens = round(max_tokens * 1.1) + 1  # it must have been more
        if (factor := _factor(tokens, sent)) is not None:
            learned = replace(learned, factor=factor, is_measured=True)
        limit = _limit(learned, max_tokens, prompt_tokens)
        return replace(learned, limit=max(limit, LEAST_LIMIT))


def _limit(window: ContextWindow, max_tokens: int | None, prompt_tokens: int | None) -> int:
    """Return how much fits after a refusal of what was sent.

    A window that is told again is no smaller for that: what was wrong is how tokens are counted.
    """
    less = _LESS if window.refusals == 1 else _MUCH_LESS
    is_told = max_tokens is not None and (not prompt_tokens or prompt_tokens > max_tokens)
    if max_tokens is not None and is_told:
        limit = max_tokens
    else:
        limit = round((prompt_tokens or window.tokens(window.sent)) * less)
    if window.limit is None or limit < window.limit:
        return limit
    return window.limit if is_told or window.refusals == 1 else round(window.limit * less)


def _factor(tokens: int, sent: int) -> float | None:
    """Return how many tokens a unit of weight is; None where a request does not say it."""
    if tokens <= 0 or sent < _LEAST_WEIGHT:
        return None
    return min(max(tokens / sent, _LEAST_FACTOR), _GREATEST_FACTOR)
