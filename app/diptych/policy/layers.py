"""The platform's rules and the agent's own, side by side: the stricter verdict counts.

So no rule of an agent weakens what its platform says, and none of the platform weakens the agent's.
"""

from typing import Any, Final

from diptych.core.catalog import Catalog
from diptych.core.messages import Call
from diptych.policy.rules import Policy, RunCaller, Verdict

_STRICTNESS: Final = ("allow", "ask", "repeated", "deny")


class LayeredPolicy(Policy):
    """A policy of two; each verdict of one with rules is a line of the audit, with whose it is."""

    def __init__(self, platform: Policy, own: Policy) -> None:
        super().__init__()
        self._platform = platform
        self._own = own

    def verdict(self, call: Call, catalog: Catalog, caller: RunCaller, **facts: Any) -> Verdict:  # noqa: ANN401
        """As `Policy.verdict`; what the platform denies, the agent's rules are not asked.

        What becomes of repeated calls is the agent's affair; the platform's rules are silent on it.
        """
        first = self._platform.verdict(call, catalog, caller, **{**facts, "repeats": 0})
        if first.outcome == "deny":
            return first
        second = self._own.verdict(call, catalog, caller, **facts)
        return max(first, second, key=lambda verdict: _STRICTNESS.index(verdict.outcome))
