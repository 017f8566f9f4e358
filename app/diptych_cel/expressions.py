"""CEL expressions of policies: checked when a manifest is read, evaluated for each call.

The library is Google's (decision 138), imported only if there is an expression.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson

from diptych_cel.call_fields import find_unknown_fields
from diptych_cel.syntax_tree import Node, read_tree

if TYPE_CHECKING:
    from cel_expr_python import cel

About: TypeAlias = Literal["tool", "agent"]
"""The subject of a rule: calls of tools, or delegations to agents."""
CALL_VARIABLES: Mapping[About, tuple[str, ...]] = {
    "tool": ("args", "tool", "caller"),
    "agent": ("args", "agent", "caller"),
}
"""The variables of an expression, by its rule's subject. Each is a map."""
MAX_EXPRESSION = 2_048  # characters
MAX_ARGS = 65_536  # bytes of JSON
MAX_MACRO_ARGS, MAX_MACRO_ELEMENTS = 16_384, 2_000  # with macros, whose cost is quadratic
_MAX_MACROS = 2  # nested
_MAX_PATTERN, _MAX_REPEATS = 256, 500  # characters, and the product of counted repeats
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON writes it, after an even number of backslashes."""
_MAX_REASON = 200  # characters


class InvalidExpression(ValueError):
    """An expression is invalid or too costly; the message begins with the position."""


class EvaluationFailed(Exception):
    """An expression gave no boolean for a call."""


class CallFacts:
    """The variables of one call, by `CALL_VARIABLES`.

    `others` returns the variables other than the arguments, when first needed.
    """

    def __init__(
        self,
        about: About,
        args: Mapping[str, Any],
        others: Callable[[], Mapping[str, Mapping[str, Any]]],
    ) -> None:
        self._about = about
        self._args = args
        self._others = others

    @cached_property
    def activation(self) -> "cel.Activation":
        """The library's form of the variables, cached, as it takes longer than most evaluations."""
        return self.new_activation()

    def new_activation(self) -> "cel.Activation":
        """Return fresh variables: evaluations with macros store values in them."""
        others = self._others()
        if any("\0" in str(text) for text in others.get("caller", {}).values()):
            raise EvaluationFailed("the caller's name contains a NUL character")
        return _environment(self._about).Activation(data={"args": self._args, **others})

    @cached_property
    def _args_size(self) -> tuple[int, int]:
        """The bytes of the arguments as JSON, and an upper bound of their elements.

        Raises `EvaluationFailed` if they are not JSON, or contain NUL, where the library would stop
        reading a string and hide the rest from every rule.
        """
        try:
            written = orjson.dumps(self._args)
        except (TypeError, RecursionError) as error:
            raise EvaluationFailed("the arguments are not plain JSON") from error
        if b"\\u0000" in written and _NUL.search(written):
            raise EvaluationFailed("the arguments contain a NUL character")
        return len(written), written.count(b",") + 1

    def require_size(self, *, has_macro: bool) -> None:
        """Raise `EvaluationFailed` if the arguments are too large for an expression."""
        size, elements = self._args_size
        if size > (MAX_MACRO_ARGS if has_macro else MAX_ARGS):
            raise EvaluationFailed("the arguments are too long for this rule")
        if has_macro and elements > MAX_MACRO_ELEMENTS:
            raise EvaluationFailed("the arguments have too many elements for this rule")


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression. `text` is its source; `has_macro` if it iterates (`all`, `map` …)."""

    text: str
    about: About
    has_macro: bool
    _program: "cel.Expression"

    def holds(self, facts: CallFacts) -> bool:
        """Evaluate it. Raises `EvaluationFailed` if it fails or is not a boolean."""
        facts.require_size(has_macro=self.has_macro)
        try:
            variables = facts.new_activation() if self.has_macro else facts.activation
            value = self._program.eval(variables)
            plain = value.plain_value()
            kind = "BOOL" if isinstance(plain, bool) else value.type().name()
        except Exception as error:  # any error of the library: fail closed
            raise EvaluationFailed(_short(str(error))) from error
        if kind != "BOOL":
            reason = str(plain) if kind == "ERROR" else f"it is {kind.lower()}, not true or false"
            raise EvaluationFailed(_short(reason))
        return bool(plain)


def check_expression(text: str, about: About) -> Expression:
    """Check an expression for rules on tools or agents. Raises `InvalidExpression`."""
    if len(text) > MAX_EXPRESSION:
        raise InvalidExpression(f"is longer than {MAX_EXPRESSION} characters")
    environment = _environment(about)
    try:
        program = environment.compile(text)
    except RuntimeError as error:
        raise InvalidExpression(_mistake(text, str(error))) from None
    result = program.return_type().name()
    if result not in {"BOOL", "DYN"}:
        raise InvalidExpression(f"column 1: must be true or false, and is {result.lower()}")
    tree = read_tree(program.serialize())
    for node, reason in (*_costs(tree, environment), *find_unknown_fields(tree)):
        raise InvalidExpression(f"{_place(text, node.offset)}: {reason}")
    return Expression(text, about, _has_macro(tree), program)


@cache
def _environment(about: About) -> "cel.Env":
    from cel_expr_python import cel  # noqa: PLC0415 - 14 MB that only policies need

    fields = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    texts = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)
    kinds = {"args": fields, "tool": fields, "agent": texts, "caller": texts}
    return cel.NewEnv(variables={name: kinds[name] for name in CALL_VARIABLES[about]})


def _has_macro(tree: Node) -> bool:
    return tree.kind == "comprehension" or any(map(_has_macro, tree.parts))


def _costs(node: Node, environment: "cel.Env", macros: int = 0) -> Iterator[tuple[Node, str]]:
    """Yield nodes that may be too costly: nested macros, and unbounded searches."""
    macros += node.kind == "comprehension"
    if macros > _MAX_MACROS:
        yield node, f"macros are nested at most {_MAX_MACROS} deep"
        return
    if node.kind == "call" and node.name == "matches":
        searched, pattern = node.parts
        if reason := _pattern_mistake(pattern, environment):
            yield pattern, reason
        elif macros and (macros == _MAX_MACROS or _names_args(searched)):
            yield node, "inside a macro, `matches` searches only the macro's own element"
    for part in node.parts:
        yield from _costs(part, environment, macros)


def _names_args(node: Node) -> bool:
    return (node.kind, node.name) == ("ident", "args") or any(map(_names_args, node.parts))


def _pattern_mistake(pattern: Node, environment: "cel.Env") -> str:
    """Return why a pattern is unusable; empty if it is fine."""
    if pattern.kind != "const":
        return "a pattern must be a constant string; join several with ||"
    repeats = prod(int(most or least) for least, most in _REPEAT.findall(pattern.text))
    if len(pattern.text) > _MAX_PATTERN or repeats > _MAX_REPEATS:
        return (
            f"is too costly: a pattern has at most {_MAX_PATTERN} characters, "
            f"and its repeats multiply to at most {_MAX_REPEATS}"
        )
    data: dict[str, Any] = {"args": {"pattern": pattern.text}}
    value = environment.compile('"".matches(string(args.pattern))').eval(data=data)
    if value.type().name() == "BOOL":
        return ""
    reason = str(value.plain_value()).partition("invalid regular expression: ")[2]
    return f"is not a valid regular expression (RE2): {_short(reason)}"


def _mistake(text: str, message: str) -> str:
    """Return the position and reason of an error, on one line."""
    found = _ERROR.search(message)
    if found is None:
        return f"column 1: {_short(message)}"
    line, column = int(found[1]), int(found[2])
    reason = found[3].removeprefix("Syntax error: ").partition(" expecting {")[0]
    reason = reason.replace(" (in container '')", "").replace("'<EOF>'", "the end")
    place = f"column {column}" if "\n" not in text.strip() else f"line {line}, column {column}"
    return f"{place}: {_short(reason)}"


def _place(text: str, offset: int) -> str:
    before = text[:offset]
    column = offset - (before.rfind("\n") + 1) + 1
    if "\n" not in text.strip():
        return f"column {column}"
    return f"line {before.count(chr(10)) + 1}, column {column}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 1]}…"
