"""What conditions ask of an argument before all else, and which arguments answer that with no.

`has(args.env) && args.env == "prod" && …` is false for a call without `env`, and for one with
another text there, whatever follows: to CEL, false and an error are together false. So nothing
needs to be evaluated to know it. Engines that hold many rules index them by the same (Open Policy
Agent, "Rule Indexing").

Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, TypeAlias

from diptych_cel.syntax_tree import Node

_Kind: TypeAlias = Literal["text", "number", "other"]
_ABOVE, _BELOW, _EQUAL = ("_>_", "_>=_"), ("_<_", "_<=_"), "_==_"
_COMPARISONS = (*_ABOVE, *_BELOW, _EQUAL)
_EXACT = 2**53  # beyond it CEL compares whole numbers with decimals as decimals, which we do not


@dataclass(frozen=True, slots=True)
class Opening:
    """What a condition asks first: `has(args.name)`, a comparison of `args.name`, or both.

    `comparison` is CEL's name of it, with a `constant`; both are "" if there is none. Without the
    argument a condition that `is_guarded` by `has` is false, and any other fails.
    """

    name: str
    is_guarded: bool
    comparison: str = ""
    constant: str | float = ""


def find_opening(tree: Node) -> Opening | None:
    """Give what a condition asks first; None if that is neither `has` nor a comparison."""
    parts = _conjuncts(tree)
    first = next(parts)
    if first.kind == "has" and _is_args(first.parts[0]):
        comparison = _comparison(next(parts, None))
        if comparison and comparison.name == first.name:
            return replace(comparison, is_guarded=True)
        return Opening(first.name, is_guarded=True)
    return _comparison(first)


class Openings:
    """What several conditions ask first: each of its own argument, or of the same."""

    def __init__(self, openings: Iterable[Opening]) -> None:
        self._wanted: dict[str, _Wanted] = {}
        for opening in openings:
            self._wanted.setdefault(opening.name, _Wanted()).add(opening)

    def rule_out(self, args: Mapping[str, Any]) -> bool:
        """Whether arguments that CEL can read make all these conditions false."""
        for name, wanted in self._wanted.items():
            if wanted.may_be(args[name]) if name in args else wanted.is_needed:
                return False
        return True


@dataclass(slots=True)
class _Wanted:
    """The values of one argument for which a condition may hold, or fail.

    All others make every condition false that asks for the argument.
    """

    is_needed: bool = False  # a condition fails without it
    kinds: set[_Kind] = field(default_factory=set)  # of the constants; "other" if only CEL can say
    equal: set[str | float] = field(default_factory=set)
    at_least: float = inf  # numbers from here up may be
    at_most: float = -inf  # and those from here down

    def add(self, opening: Opening) -> None:
        self.is_needed |= not opening.is_guarded
        constant = opening.constant
        self.kinds.add(_kind(constant) if opening.comparison else "other")
        if opening.comparison == _EQUAL:
            self.equal.add(constant)
        elif isinstance(constant, str):  # texts are compared by CEL
            self.kinds.add("other")
        elif opening.comparison in _ABOVE:
            self.at_least = min(self.at_least, constant)
        else:
            self.at_most = max(self.at_most, constant)

    def may_be(self, value: object) -> bool:
        kind = _kind(value)
        if kind == "other" or self.kinds != {kind}:
            return True
        if value in self.equal:
            return True
        return isinstance(value, int | float) and (value >= self.at_least or value <= self.at_most)


def _kind(value: object) -> _Kind:
    if isinstance(value, str):
        return "text"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "other"
    return "number" if -_EXACT < value < _EXACT else "other"


def _conjuncts(node: Node) -> Iterator[Node]:
    """Give the parts of a chain of `&&`, from the left."""
    if node.kind == "call" and node.name == "_&&_":
        for part in node.parts:
            yield from _conjuncts(part)
    else:
        yield node


def _comparison(node: Node | None) -> Opening | None:
    """Read `args.name == constant`, or another comparison."""
    if node is None or node.kind != "call" or node.name not in _COMPARISONS:
        return None
    argument, constant = node.parts
    is_argument = argument.kind == "select" and _is_args(argument.parts[0])
    if not is_argument or constant.value is None:
        return None
    return Opening(argument.name, is_guarded=False, comparison=node.name, constant=constant.value)


def _is_args(node: Node) -> bool:
    return (node.kind, node.name) == ("ident", "args")
