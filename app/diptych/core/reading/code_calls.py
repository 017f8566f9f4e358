"""Calls that are written as code: `read(path="x")` (loop.md §3, "Other models' forms")."""

import ast
from typing import Any

MAX_CODE = 20_000
"""Characters of code that are looked at; a longer text is no call."""


def calls_in_code(code: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Give the names and arguments of one call, or of a list of calls, that is all of the code.

    The arguments are literals with names. `print(…)` around a call is taken off, as Gemma writes
    it, and so is `.call`, as Llama 3 writes it. Anything else is None; code is never run.
    """
    tree = _parsed(code)
    if tree is None:
        return None
    body = tree.body
    calls = body.elts if isinstance(body, ast.List) else [body]
    found = [_call(node) for node in calls]
    return [call for call in found if call] if found and None not in found else None


def _parsed(code: str) -> ast.Expression | None:
    source = code.strip()
    if len(source) > MAX_CODE or not source.endswith((")", "]")):
        return None
    for tried in (source, source.replace("\n", "\\n")):  # LFM breaks lines inside its strings
        try:
            return ast.parse(tried, mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
    return None


def _call(node: ast.expr) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(node, ast.Call):
        return None
    name = _name(node.func)
    if name == "print" and len(node.args) == 1 and not node.keywords:
        return _call(node.args[0])
    if name is None or node.args:
        return None
    try:
        return name, {str(k.arg): _literal(k.value) for k in node.keywords if _is_named(k)}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _is_named(keyword: ast.keyword) -> bool:
    if keyword.arg is None:
        raise ValueError("**arguments say nothing")
    return True


def _literal(node: ast.expr) -> Any:  # noqa: ANN401 - a value of Python
    """Give the value of a literal that JSON has too; `true`, `false` and `null` are known.

    Raises ValueError for others.
    """
    match node:
        case ast.Name(id=word):
            return {"true": True, "false": False, "null": None}[word] if word in _WORDS else _no()
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(k): _literal(v) for k, v in zip(keys, values, strict=True)}
    value = ast.literal_eval(node)
    return value if isinstance(value, str | int | float | None) else _no()


_WORDS = frozenset({"true", "false", "null"})


def _key(node: ast.expr | None) -> str:
    value = ast.literal_eval(node) if node else None
    return value if isinstance(value, str) else str(_no())


def _no() -> Any:  # noqa: ANN401 - it never returns
    raise ValueError("no literal of JSON")


def _name(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    name = ".".join((node.id, *reversed(parts)))
    return name.removesuffix(".call")
