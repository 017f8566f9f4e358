"""Single rules, and neighbours among them that one evaluation can tell not to hold.

Most rules do not hold for most calls. So conditions that follow one another are also checked as one
expression, and only where that is not surely false is each asked for itself: what a policy decides,
and what its audit says, does not depend on how rules are grouped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from diptych_cel.cost import COST_LIMIT
from diptych_cel.expressions import About, CallFacts, Disjunction, Expression
from diptych_cel.openings import Openings

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
    """Rules in their order, with their places in the policy.

    `conditions` joins all conditions, None if that says nothing. `openings` has the first tests of
    those that begin with a test of an argument, and `others` joins the rest.
    """

    rules: Sequence[tuple[int, Rule]]
    conditions: Disjunction | None = None
    openings: Openings | None = None
    others: Disjunction | None = None

    def is_surely_false(self, facts: CallFacts) -> bool:
        """Whether no rule holds for a call, and none fails."""
        conditions = self.conditions
        if self.openings and facts.are_ruled_out(self.openings):
            if self.others is None:
                return True
            conditions = self.others
        return conditions is not None and conditions.is_false(facts)


def grouped(rules: Iterable[tuple[int, Rule]]) -> Sequence[RuleGroup]:
    """Group rules whose conditions can be evaluated together."""
    return [
        _group(part, is_joinable=is_joinable)
        for is_joinable, neighbours in groupby(rules, key=_is_joinable)
        for part in _parts(neighbours)
    ]


def _group(rules: Sequence[tuple[int, Rule]], *, is_joinable: bool) -> RuleGroup:
    conditions = [rule.when for _, rule in rules]
    found = [when.opening if when else None for when in conditions]
    rest = [when for when, opening in zip(conditions, found, strict=True) if not opening]
    others = _joined(rest) if is_joinable and any(found) else None
    is_useful = any(found) and (not rest or others is not None)
    openings = Openings(each for each in found if each) if is_useful else None
    # One condition is as quickly asked itself.
    joined = _joined(conditions) if is_joinable and len(conditions) > 1 else None
    return RuleGroup(rules, joined, openings, others)


def _parts(rules: Iterable[tuple[int, Rule]]) -> Iterator[Sequence[tuple[int, Rule]]]:
    """Part rules where one evaluation of all would be too costly."""
    part: list[tuple[int, Rule]] = []
    cost = 0
    for number, rule in rules:
        of_rule = rule.when.usual_cost if rule.when else 0
        if len(part) == _MOST_JOINED or cost + of_rule > COST_LIMIT:
            yield part
            part, cost = [], 0
        part.append((number, rule))
        cost += of_rule
    yield part


def _is_joinable(placed: tuple[int, Rule]) -> bool:
    condition = placed[1].when
    return condition is not None and condition.is_joinable


def _joined(conditions: Sequence[Expression | None]) -> Disjunction | None:
    try:
        return Disjunction([each for each in conditions if each]) if conditions else None
    except ValueError:  # a depth that each of them just had is too much for all
        return None
