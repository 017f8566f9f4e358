# ruff: noqa: INP001 - a script, no package
"""Writes `docs/reference/python.md` from `diptych.__all__`: signatures and docstrings."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import diptych
import diptych.testing

FILE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
WIDTH = 100
FIRST = ("Agent", "tool")
TESTING = """\
For tests of agents without a model and without effects, in any test runner.
"""
HEAD = """\
# Python API

<!-- tools/reference/python_api.py writes this page. -->

The public surface: `from diptych import …`. The [tutorial](../start/tutorial.md) introduces it, and
[Hooks](../hooks.md) explains the functions that a run calls.
"""


def text() -> str:
    """Return the page."""
    return "\n".join([HEAD, *_lines()])


def _lines() -> Iterator[str]:
    for name in sorted(diptych.__all__, key=lambda name: (name not in FIRST, name)):
        yield from _described(name, getattr(diptych, name))
    yield f"## diptych.testing\n\n{TESTING}"
    for name in diptych.testing.__all__:
        yield from _described(f"testing.{name}", getattr(diptych.testing, name))


def _described(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - any public name
    yield f"## {name}\n"
    if inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isroutine(value):
        yield from _function(name, value)
    elif members := get_args(value):
        names = (
            each.__name__ if inspect.isclass(each) else str(each).replace("typing.", "")
            for each in members
        )
        yield f"One of {', '.join(f'`{each}`' for each in names)}.\n"


def _class(name: str, value: type) -> Iterator[str]:
    yield from _function(name, value)
    if dataclasses.is_dataclass(value):
        return
    for attribute in sorted(vars(value).keys() | _inherited(value)):
        member = inspect.getattr_static(value, attribute)
        if attribute.startswith("_") or not inspect.getdoc(getattr(value, attribute, None)):
            continue
        if isinstance(member, property):
            yield f"### `{name}.{attribute}`\n"
            yield f"{_doc(member)}\n"
        elif callable(getattr(value, attribute)):
            yield f"### `{name}.{attribute}`\n"
            yield from _function(attribute, getattr(value, attribute))


def _inherited(value: type) -> set[str]:
    ours = [each for each in value.__mro__ if each.__module__.startswith("diptych")]
    return {attribute for each in ours for attribute in vars(each)}


def _function(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - a class or function
    yield f"```python\n{_signature(name, value)}\n```\n"
    if doc := _doc(value):
        yield f"{doc}\n"


def _signature(name: str, value: Any) -> str:  # noqa: ANN401 - a class or function
    """Return a signature as its source has it, one parameter a line where it is long."""
    source = textwrap.dedent(inspect.getsource(value))
    (node,) = ast.parse(source).body
    if isinstance(node, ast.ClassDef):
        found = _fields(node) if dataclasses.is_dataclass(value) else _initial(value)
        prefix, result = "", ""
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        found = _parameters(node)
        prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    else:
        return name
    line = f"{prefix}{name}({', '.join(found)}){result}"
    if len(line) <= WIDTH:
        return line
    return f"{prefix}{name}(\n" + "".join(f"    {each},\n" for each in found) + f"){result}"


def _initial(value: type) -> list[str]:
    if "__init__" not in vars(value):
        return []
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(value.__init__))).body  # type: ignore[misc]
    return _parameters(node) if isinstance(node, ast.FunctionDef) else []


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the parameters without the first, `self` or `cls`, of a method."""
    given = node.args
    every = [each for each in (*given.posonlyargs, *given.args) if each.arg not in {"self", "cls"}]
    defaults = [None] * (len(every) - len(given.defaults)) + list(given.defaults)
    found = [_parameter(*each) for each in zip(every, defaults, strict=True)]
    if given.vararg:
        found.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        found.append("*")
    found += [_parameter(*e) for e in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return found + ([f"**{ast.unparse(given.kwarg)}"] if given.kwarg else [])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    equals = " = " if argument.annotation else "="
    return f"{ast.unparse(argument)}{equals}{ast.unparse(default)}"


def _fields(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)]


def _doc(value: object) -> str:
    """Return a docstring, with examples (indented lines) as they are."""
    return (inspect.getdoc(value) or "").replace("(docs/hooks.md)", "([hooks](../hooks.md))")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
