"""Parses the syntax tree of a checked CEL expression (`cel.expr.CheckedExpr` in protobuf).

The library exposes the tree only in serialized form.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

_VARINT, _FIXED_64, _BYTES = 0, 1, 2  # wire types; any other is four bytes
_WIRE_TYPE = 7  # bit mask of a tag
_LAST_BYTE = 0x80
Kind = Literal["const", "ident", "select", "has", "call", "list", "struct", "comprehension"]
_KINDS: Mapping[int, Kind] = {
    3: "const",
    4: "ident",
    5: "select",
    6: "call",
    7: "list",
    8: "struct",
    9: "comprehension",
}
_CONSTANT_TEXTS = (6, 7)  # string, bytes
_ONLY_TESTED = 3  # of a select: it is a `has` macro

_Message: TypeAlias = Mapping[int, list[Any]]
"""The fields of a message by number; each may occur several times."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an expression; `offset` is its position in characters, from 0.

    `name` is that of a variable, field or function, or of a comprehension's variable; `text` is a
    constant's value. `has` is the macro, otherwise like `select`. `parts` are the child nodes: of a
    call, its target first; of a comprehension, range, start, condition, step and result.
    """

    kind: Kind
    offset: int
    name: str = ""
    text: str = ""
    parts: tuple["Node", ...] = field(default=())


def read_tree(serialized: bytes) -> Node:
    """Parse a serialized expression. Raises `ValueError` if it is invalid."""
    try:
        checked = _messages(dict(_fields(serialized))[2])
        [source] = checked[5]
        positions = dict(_position(entry) for entry in _messages(source).get(4, ()))
        return _node(checked[4][0], positions)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"this is not a checked expression: {error!r}") from error


def _node(encoded: bytes, positions: Mapping[int, int]) -> Node:
    found = dict(_fields(encoded))
    number = next(number for number in _KINDS if number in found)
    kind, inner = _KINDS[number], _messages(found[number])
    offset = positions.get(found.get(2, 0), 0)

    def nodes(*numbers: int) -> tuple[Node, ...]:
        return tuple(_node(part, positions) for n in numbers for part in inner.get(n, ()))

    match kind:
        case "const":
            texts = [inner[n][0] for n in _CONSTANT_TEXTS if n in inner]
            text = texts[0].decode(errors="replace") if texts else ""
            return Node(kind, offset, text=text)
        case "ident":
            return Node(kind, offset, _name(inner, 1))
        case "select" | "has":
            is_test = inner.get(_ONLY_TESTED) == [1]
            return Node("has" if is_test else kind, offset, _name(inner, 2), parts=nodes(1))
        case "call":
            return Node(kind, offset, _name(inner, 2), parts=nodes(1, 3))
        case "list":
            return Node(kind, offset, parts=nodes(1))
        case "struct":
            entries = [_messages(entry) for entry in inner.get(2, ())]
            values = [part for e in entries for n in (3, 4) for part in e.get(n, ())]
            return Node(kind, offset, parts=tuple(_node(v, positions) for v in values))
        case "comprehension":
            return Node(kind, offset, _name(inner, 1), parts=nodes(2, 4, 5, 6, 7))


def _name(inner: _Message, number: int) -> str:
    return inner[number][0].decode() if number in inner else ""


def _position(entry: bytes) -> tuple[int, int]:
    found = dict(_fields(entry))
    return found.get(1, 0), found.get(2, 0)


def _messages(encoded: bytes) -> _Message:
    found: dict[int, list[Any]] = {}
    for number, value in _fields(encoded):
        found.setdefault(number, []).append(value)
    return found


def _fields(encoded: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a message (protobuf "Encoding")."""
    at = 0
    while at < len(encoded):
        tag, at = _varint(encoded, at)
        wire_type = tag & _WIRE_TYPE
        if wire_type == _VARINT:
            value, at = _varint(encoded, at)
            yield tag >> 3, value
            continue
        size = 8 if wire_type == _FIXED_64 else 4
        if wire_type == _BYTES:
            size, at = _varint(encoded, at)
        yield tag >> 3, encoded[at : at + size]
        at += size


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = encoded[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < _LAST_BYTE:
            return number, at
