"""What evaluating a CEL expression may cost at most, before it is evaluated.

The library ends an evaluation after 10,000 iterations, but one of them may search a whole text. So
the bound is iterations times characters. It is an estimate in the manner of Kubernetes' own: a unit
is about a nanosecond to four.

Not here: the tree (`syntax_tree`), what follows from a cost (`expressions`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from diptych.policy.syntax_tree import Node

MAX_ITERATIONS = 10_000  # after which the library ends an evaluation
COST_LIMIT = 10_000_000  # of one evaluation: some 10 ms
SMALL_SIZE = 1_024  # characters that a variable which is not the call's arguments has
_MATCH_COST = 4  # of a character that a pattern is held against
_CHEAP = frozenset(
    ("_&&_", "_||_", "!_", "@not_strictly_false", "_-_", "-_", "_*_", "_/_", "_%_", "has")
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost and the size of a value, and the most costly iteration in it, if there is one."""

    cost: int
    size: int = 1
    worst: Node | None = None


def estimate(tree: Node, args_size: int) -> Estimate:
    """Estimate the cost of an expression over arguments of so many characters of JSON."""
    return _estimate(tree, {"args": args_size}, MAX_ITERATIONS)


def _estimate(node: Node, sizes: Mapping[str, int], iterations: int) -> Estimate:
    if node.kind == "const":
        return Estimate(1, len(node.text) or 1)
    if node.kind == "ident":
        return Estimate(1, sizes.get(node.name, SMALL_SIZE))
    if node.kind == "comprehension":
        return _iteration(node, sizes, iterations)
    parts = [_estimate(part, sizes, iterations) for part in node.parts]
    size = sum(part.size for part in parts)
    inner = 1 + sum(part.cost for part in parts)
    worst = _worst(parts)
    if node.kind != "call":
        return Estimate(inner, size, worst)
    if node.name in _CHEAP:
        return Estimate(inner, 1, worst)
    if node.name in {"_?_:_", "_[_]"}:
        return Estimate(inner, max(part.size for part in parts), worst)
    return Estimate(inner + size * (_MATCH_COST if node.name == "matches" else 1), size, worst)


def _iteration(node: Node, sizes: Mapping[str, int], iterations: int) -> Estimate:
    """Estimate a macro such as `all`: few long elements, or many short ones, as costs more."""
    over, *rest = node.parts
    range_ = _estimate(over, sizes, iterations)
    most = len(over.parts) if over.kind == "list" else range_.size // 2
    most = max(1, min(most, iterations))
    found = []
    for count in {1, most}:
        element = range_.size if over.kind == "list" else max(1, range_.size // count)
        inside = {**sizes, node.name: element, "@result": 1}
        parts = [_estimate(part, inside, max(1, iterations // count)) for part in rest]
        cost = range_.cost + count * sum(part.cost for part in parts)
        found.append(Estimate(cost, range_.size + count * max(part.size for part in parts), node))
    return max(found, key=lambda one: one.cost)


def _worst(parts: list[Estimate]) -> Node | None:
    costly = max(parts, key=lambda part: part.cost if part.worst else -1, default=None)
    return costly.worst if costly else None
