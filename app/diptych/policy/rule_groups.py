"""Single rules, and neighbours among them that one evaluation can tell not to hold.

Most rules do not hold for most calls. So conditions that follow one another are also checked as one
expression, and only where that is not surely false is each asked for itself: what a policy decides,
and what its audit says, does not depend on how rules are grouped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from diptych_cel.expressions import About, CallFacts, Disjunction, Expression

Decided = Literal["allow", "deny", "ask"]
EXPIRES = 600.0  # seconds for which an approval waits, unless a rule says otherwise
_MOST_JOINED = 64  # conditions: each more takes 0.06 ms when a group of them is checked


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, for the calls that `glob` and `when` match.

    `about` is what it is about: tools, by their names or long names, or agents. An approval
    `expires` after so many seconds. With `is_dry_run` it decides nothing, and is audited. `repeat`
    says what becomes of a call that the rule allows, and that would repeat its effect in
    consecutive steps; with None the third is not made.
    """

    about: About
    glob: str
    do: Decided
    when: Expression | None = None
    reason: str = ""
    expires: float = EXPIRES
    is_dry_run: bool = False
    repeat: Decided | None = None


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules in their order, with their places in the policy, and all conditions as one, if any."""

    rules: Sequence[tuple[int, Rule]]
    conditions: Disjunction | None = None

    def is_surely_false(self, facts: CallFacts) -> bool:
        """Whether no rule holds for a call, and none fails."""
        return self.conditions is not None and self.conditions.is_false(facts)


def grouped(rules: Iterable[tuple[int, Rule]]) -> Sequence[RuleGroup]:
    """Group neighbouring rules whose conditions can be evaluated together."""
    return [
        RuleGroup(part, _joined(part) if is_joinable and len(part) > 1 else None)
        for is_joinable, neighbours in groupby(rules, key=_is_joinable)
        for part in _parts([*neighbours])
    ]


def _parts(rules: Sequence[tuple[int, Rule]]) -> Iterator[Sequence[tuple[int, Rule]]]:
    for start in range(0, len(rules), _MOST_JOINED):
        yield rules[start : start + _MOST_JOINED]


def _is_joinable(placed: tuple[int, Rule]) -> bool:
    condition = placed[1].when
    return condition is not None and not condition.has_macro


def _joined(rules: Sequence[tuple[int, Rule]]) -> Disjunction | None:
    try:
        return Disjunction([rule.when for _, rule in rules if rule.when])
    except ValueError:  # together they are deeper than CEL allows
        return None
