"""Finds uses of fields that no call has; they would make a condition always fail."""

from collections.abc import Iterator, Mapping

from diptych_cel.syntax_tree import Node

_FIELDS: Mapping[str, frozenset[str]] = {
    "tool": frozenset(("name", "server", "longName", "annotations")),
    "tool.annotations": frozenset(
        ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    ),
    "agent": frozenset(("name",)),
    "caller": frozenset(("subject", "kind", "name", "onBehalfOf")),
}


def find_unknown_fields(
    tree: Node, own: frozenset[str] = frozenset()
) -> Iterator[tuple[Node, str]]:
    """Yield each use of an unknown field, with an error.

    `own` are the element names of surrounding macros, which are not variables of the call.
    """
    field = _used_field(tree)
    variable = _name(tree.parts[0], own) if field is not None else ""
    known = _FIELDS.get(variable)
    if known is not None and field not in known:
        yield tree, f"{variable} has no {field}; it has {', '.join(sorted(known))}"
    inner = own | {tree.name} if tree.kind == "comprehension" else own
    for part in tree.parts:
        yield from find_unknown_fields(part, inner)


def _used_field(node: Node) -> str | None:
    """Return the field that a node accesses: `tool.name`, `has(tool.name)`, `tool["name"]`."""
    if node.kind in {"select", "has"}:
        return node.name
    is_index = node.kind == "call" and node.name == "_[_]" and node.parts[1].kind == "const"
    return node.parts[1].text if is_index else None


def _name(node: Node, own: frozenset[str]) -> str:
    """Return a variable or field as a dotted name."""
    if node.kind == "ident":
        return "" if node.name in own else node.name
    field = _used_field(node)
    if field is None or node.kind == "has":
        return ""
    return f"{_name(node.parts[0], own)}.{field}"
