"""A run's knowledge of its model's context window: its size, and how tokens are counted.

The size comes from the manifest or from the model's refusals; until then there is no limit. The
ratio of tokens to our estimate (`tokens.weight`) is measured from reported usage; until then it is
1.
"""

from dataclasses import dataclass, replace
from typing import Final

MAX_REFUSALS: Final = 4
"""How often in a row a model may refuse a request as too long. Refusals are free; each retry is
smaller."""
MIN_LIMIT: Final = 512
"""The smallest window in tokens that a manifest may set or a refusal teach."""
_MIN_WEIGHT = 200  # of a request to measure the factor by; smaller ones are mostly template
_MIN_FACTOR, _MAX_FACTOR = 0.5, 8.0
_LESS, _MUCH_LESS = (
    0.75,
    0.5,
)  # share of the refused size to try next, if the endpoint names no limit


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """A window of `limit` tokens, None if unknown; `factor` is tokens per unit of weight.

    `sent` is the weight of the newest request, `others` that of everything in it but the
    conversation. `refusals` counts those since the newest reply; `has_compacted` says whether the
    conversation was compacted since then.
    """

    limit: int | None = None
    factor: float = 1.0
    is_measured: bool = False
    sent: int = 0
    others: int = 0
    refusals: int = 0
    has_compacted: bool = False

    def weight(self, share: float) -> float:
        """Convert a share of the window to weight; infinite if the window is unknown."""
        return float("inf") if self.limit is None else self.limit * share / self.factor

    def tokens(self, weight: float) -> int:
        """Convert weight to tokens."""
        return round(weight * self.factor)

    def joined(self, other: "ContextWindow") -> "ContextWindow":
        """Combine the knowledge of two runs: the smaller window, the newer measurement."""
        limits = [w.limit for w in (self, other) if w.limit is not None]
        newest = other if other.is_measured else self
        return ContextWindow(min(limits, default=None), newest.factor, newest.is_measured)

    def replied(self, prompt_tokens: int) -> "ContextWindow":
        """Learn the factor from a reply's usage; 0 means that the endpoint reports none."""
        factor = _factor(prompt_tokens, self.sent)
        if factor is None:
            return replace(self, refusals=0, has_compacted=False)
        return replace(self, refusals=0, has_compacted=False, factor=factor, is_measured=True)

    def refused(
        self, sent: int, max_tokens: int | None, prompt_tokens: int | None
    ) -> "ContextWindow":
        """Learn from the refusal of a request of weight `sent`.

        Some endpoints count the reply's tokens too, so the reported request may be smaller than the
        window. A reported window below `MIN_LIMIT` is ignored as misread: it would block all
        later requests.
        """
        if max_tokens is not None and max_tokens < MIN_LIMIT:
            max_tokens = None
        learned = replace(self, sent=sent, refusals=self.refusals + 1)
        tokens = prompt_tokens or 0
        if max_tokens and not prompt_tokens and self.tokens(sent) <= max_tokens:
            tokens = round(max_tokens * 1.1) + 1  # the request was longer than the window
        if (factor := _factor(tokens, sent)) is not None:
            learned = replace(learned, factor=factor, is_measured=True)
        limit = _limit(learned, max_tokens, prompt_tokens)
        return replace(learned, limit=max(limit, MIN_LIMIT))


def _limit(window: ContextWindow, max_tokens: int | None, prompt_tokens: int | None) -> int:
    """Return how many tokens fit, after a refusal.

    If the endpoint repeats the known window, the factor was wrong, not the window.
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
    """Return tokens per unit of weight, None if the request is too small to tell."""
    if tokens <= 0 or sent < _MIN_WEIGHT:
        return None
    return min(max(tokens / sent, _MIN_FACTOR), _MAX_FACTOR)
