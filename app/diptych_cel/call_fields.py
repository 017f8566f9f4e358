"""The fields of what an expression knows of a call beside its arguments, and uses of others.

A field that no call has makes a condition fail for every call, or `has` never true.
"""

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
    """Find where a field is used that there never is, and say so.

    `own` are the names that macros around give to elements; these are no variables of a call.
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
    """Return the field that a node asks for: `tool.name`, `has(tool.name)`, `tool["name"]`."""
    if node.kind in {"select", "has"}:
        return node.name
    is_index = node.kind == "call" and node.name == "_[_]" and node.parts[1].kind == "const"
    return node.parts[1].text if is_index else None


def _name(node: Node, own: frozenset[str]) -> str:
    """Name a variable, or a field of one, as it is written with a dot."""
    if node.kind == "ident":
        return "" if node.name in own else node.name
    field = _used_field(node)
    if field is None or node.kind == "has":
        return ""
    return f"{_name(node.parts[0], own)}.{field}"
