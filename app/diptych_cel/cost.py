"""What evaluating a CEL expression may cost at most, before it is evaluated.

The library ends an evaluation after 10,000 iterations, but one of them may search a whole text. So
the bound is iterations times characters; a pattern counts by its size when compiled, and a list
that a macro makes by the copies of it. It is an estimate in the manner of Kubernetes' own: a unit
is about a nanosecond to four.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from diptych_cel.pattern_size import MAX_SIZE, pattern_size
from diptych_cel.syntax_tree import Node

MAX_ITERATIONS = 10_000  # after which the library ends an evaluation
COST_LIMIT = 10_000_000  # of one evaluation: some 10 to 40 ms
SMALL_SIZE = 1_024  # characters that a variable which is not the call's arguments has
_COPY_COST = 8  # of an element that is copied
_COMPILE_COST = 400  # of a unit of a pattern's size, each time that it is used
_CLASS_SEARCHED, _CLASS_COMPILED = 20, 1_200  # units of a class such as `\pL`
_CHEAP = frozenset(
    ("_&&_", "_||_", "!_", "@not_strictly_false", "_-_", "-_", "_*_", "_/_", "_%_", "has")
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a value, and what bounds the cost of what is done with it.

    `size` is in characters; `elements` are those of all lists and maps in it. `texts` are the
    constants of which it is one or is made up, None if it may be another. `worst` is the most
    costly iteration in it, or a search that is too costly in itself.
    """

    cost: int
    size: int = 1
    elements: int = 1
    texts: tuple[str, ...] | None = None
    worst: Node | None = None


def estimate(tree: Node, args_size: int, args_elements: int) -> Estimate:
    """Estimate the cost of an expression over arguments of so many characters of JSON.

    `args_elements` is how many elements their lists and maps have in all, at most.
    """
    return _estimate(tree, {"args": Estimate(1, args_size, args_elements)}, MAX_ITERATIONS)


def _estimate(node: Node, known: Mapping[str, Estimate], iterations: int) -> Estimate:
    if node.kind == "const":
        return Estimate(1, len(node.text) or 1, texts=(node.text,))
    if node.kind == "ident":
        return known.get(node.name, Estimate(1, SMALL_SIZE, SMALL_SIZE // 2))
    if node.kind == "comprehension":
        return _iteration(node, known, iterations)
    parts = [_estimate(part, known, iterations) for part in node.parts]
    size = sum(part.size for part in parts)
    elements = len(parts) + sum(part.elements for part in parts)
    inner = 1 + sum(part.cost for part in parts)
    worst = _worst(parts)
    if node.kind != "call":
        texts = _texts(parts) if node.kind == "list" else None
        return Estimate(inner, size, elements, texts, worst)
    if node.name in _CHEAP:
        return Estimate(inner, worst=worst)
    if node.name in {"_?_:_", "_[_]"}:
        most = max(part.elements for part in parts)
        texts = _texts(parts[1:]) if node.name == "_?_:_" else None
        return Estimate(inner, max(part.size for part in parts), most, texts, worst)
    if node.name == "matches":
        found = _search_cost(*parts)
        return Estimate(inner + found, worst=node if found > COST_LIMIT else worst)
    return Estimate(inner + size, size, elements, worst=worst)


def _search_cost(text: Estimate, pattern: Estimate) -> int:
    if pattern.texts is None:
        return MAX_SIZE * (text.size + _COMPILE_COST)
    return max((_constant_cost(one, text.size) for one in pattern.texts), default=1)


@lru_cache(maxsize=1024)
def _sizes(pattern: str) -> tuple[int, int]:
    return pattern_size(pattern, _CLASS_SEARCHED), pattern_size(pattern, _CLASS_COMPILED)


def _constant_cost(pattern: str, text_size: int) -> int:
    searched, compiled = _sizes(pattern)
    return searched * text_size + compiled * _COMPILE_COST


def _iteration(node: Node, known: Mapping[str, Estimate], iterations: int) -> Estimate:
    """Estimate a macro such as `all`: few long elements, or many short ones, as costs more.

    What is between them costs most where each iteration goes over all arguments once more.
    """
    over, *rest = node.parts
    range_ = _estimate(over, known, iterations)
    is_list = over.kind == "list"
    most = len(over.parts) if is_list else min(range_.size // 2, range_.elements)
    most = max(1, min(most, iterations))
    between = min(most, max(1, iterations // known["args"].elements))
    makes_list = rest[0].kind == "list"
    found = []
    for count in {1, between, most}:
        shares = 1 if is_list else count
        element = Estimate(
            1, max(1, range_.size // shares), max(1, range_.elements // shares), range_.texts
        )
        inside = {**known, node.name: element, "@result": Estimate(1)}
        parts = [_estimate(part, inside, max(1, iterations // count)) for part in rest]
        copies = count * count // 2 if makes_list else 0
        cost = range_.cost + count * sum(part.cost for part in parts) + copies * _COPY_COST
        size = range_.size + count * max(part.size for part in parts)
        elements = range_.elements + count * max(part.elements for part in parts)
        search = next((p.worst for p in parts if p.worst and p.worst.kind == "call"), None)
        found.append(Estimate(cost, size, elements, worst=search or node))
    return max(found, key=lambda one: one.cost)


def _texts(parts: list[Estimate]) -> tuple[str, ...] | None:
    """Join the constants that values may be; None if one of them may be anything."""
    joined: dict[str, None] = {}
    for part in parts:
        if part.texts is None:
            return None
        joined.update(dict.fromkeys(part.texts))
    return tuple(joined)


def _worst(parts: list[Estimate]) -> Node | None:
    costly = max(parts, key=lambda part: part.cost if part.worst else -1, default=None)
    return costly.worst if costly else None
