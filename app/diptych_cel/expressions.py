"""CEL expressions of policies and triggers: checked when a manifest is read, evaluated later.

The library is Google's (decision 138), imported only if there is an expression.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import orjson

from diptych_cel.call_fields import find_unknown_fields
from diptych_cel.syntax_tree import Node, read_tree

if TYPE_CHECKING:
    from cel_expr_python import cel

About: TypeAlias = Literal["tool", "agent"]
"""The subject of a rule: calls of tools, or delegations to agents."""
Subject: TypeAlias = About | Literal["delivery"]
"""The subject of an expression: also what a trigger receives."""
Result: TypeAlias = Literal["bool", "string", "name"]
"""The result of an expression; a `name` is a string or a whole number."""
VARIABLES: Mapping[Subject, tuple[str, ...]] = {
    "tool": ("args", "tool", "caller"),
    "agent": ("args", "agent", "caller"),
    "delivery": ("body", "headers"),
}
"""The variables of an expression, by its subject. Each is a map, except a delivery's `body`."""
_RESULTS: Mapping[Result, tuple[frozenset[str], str]] = {
    "bool": (frozenset({"BOOL"}), "true or false"),
    "string": (frozenset({"STRING"}), "a string"),
    "name": (frozenset({"STRING", "INT", "UINT"}), "a string or a whole number"),
}
MAX_EXPRESSION = 2_048  # characters
MAX_ARGS = 65_536  # bytes of JSON
MAX_MACRO_ARGS, MAX_MACRO_ELEMENTS = 16_384, 2_000  # with macros, whose cost is quadratic
MAX_BODY = 1_048_576  # bytes of JSON of a delivery
MAX_MACRO_BODY = 131_072
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
    """An expression gave no result of the right type."""


class Facts(Protocol):
    """The variables of an evaluation; evaluations with macros need fresh ones."""

    @property
    def activation(self) -> "cel.Activation": ...

    def new_activation(self) -> "cel.Activation": ...

    def require_size(self, *, has_macro: bool) -> None: ...


class CallFacts:
    """The variables of one call, by `VARIABLES`.

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
        return _json_size(self._args, "the arguments are", "the arguments contain")

    def require_size(self, *, has_macro: bool) -> None:
        """Raise `EvaluationFailed` if the arguments are too large for an expression."""
        size, elements = self._args_size
        if size > (MAX_MACRO_ARGS if has_macro else MAX_ARGS):
            raise EvaluationFailed("the arguments are too long for this rule")
        if has_macro and elements > MAX_MACRO_ELEMENTS:
            raise EvaluationFailed("the arguments have too many elements for this rule")


class DeliveryFacts:
    """The variables of one delivery to a trigger: its JSON body, and its headers."""

    def __init__(self, body: object, headers: Mapping[str, str]) -> None:
        self._variables = {"body": body, "headers": dict(headers)}

    @cached_property
    def activation(self) -> "cel.Activation":
        return self.new_activation()

    def new_activation(self) -> "cel.Activation":
        return _environment("delivery").Activation(data=self._variables)

    @cached_property
    def _size(self) -> tuple[int, int]:
        return _json_size(self._variables, "the delivery is", "the delivery contains")

    def require_size(self, *, has_macro: bool) -> None:
        """Raise `EvaluationFailed` if the delivery is too large for an expression."""
        size, elements = self._size
        if size > (MAX_MACRO_BODY if has_macro else MAX_BODY):
            raise EvaluationFailed("the delivery is too long for this expression")
        if has_macro and elements > MAX_MACRO_ELEMENTS:
            raise EvaluationFailed("the delivery has too many elements for this expression")


def _json_size(value: object, are: str, contain: str) -> tuple[int, int]:
    """Return the bytes of a value as JSON, and an upper bound of its elements.

    Raises `EvaluationFailed` if it is not JSON, or contains NUL, where the library would stop
    reading a string and hide the rest from every expression.
    """
    try:
        written = orjson.dumps(value)
    except (TypeError, RecursionError) as error:
        raise EvaluationFailed(f"{are} not plain JSON") from error
    if b"\\u0000" in written and _NUL.search(written):
        raise EvaluationFailed(f"{contain} a NUL character")
    return len(written), written.count(b",") + 1


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression. `text` is its source; `has_macro` if it iterates (`all`, `map` …)."""

    text: str
    about: Subject
    has_macro: bool
    _program: "cel.Expression"
    _result: Result = "bool"

    def holds(self, facts: Facts) -> bool:
        """Evaluate a condition. Raises `EvaluationFailed` if it fails or is not a boolean."""
        return bool(self._value(facts))

    def text_of(self, facts: Facts) -> str:
        """Evaluate a string, or a name. Raises `EvaluationFailed` if it fails or is neither."""
        return str(self._value(facts))

    def _value(self, facts: Facts) -> object:
        facts.require_size(has_macro=self.has_macro)
        try:
            variables = facts.new_activation() if self.has_macro else facts.activation
            value = self._program.eval(variables)
            plain = value.plain_value()
            kind = "BOOL" if isinstance(plain, bool) else value.type().name()
        except Exception as error:  # any error of the library: fail closed
            raise EvaluationFailed(_short(str(error))) from error
        kinds, wanted = _RESULTS[self._result]
        if kind not in kinds:
            reason = str(plain) if kind == "ERROR" else f"it is {kind.lower()}, not {wanted}"
            raise EvaluationFailed(_short(reason))
        return plain


def check_expression(text: str, about: Subject, result: Result = "bool") -> Expression:
    """Check an expression on a subject. Raises `InvalidExpression`."""
    if len(text) > MAX_EXPRESSION:
        raise InvalidExpression(f"is longer than {MAX_EXPRESSION} characters")
    environment = _environment(about)
    try:
        program = environment.compile(text)
    except RuntimeError as error:
        raise InvalidExpression(_mistake(text, str(error))) from None
    kind = program.return_type().name()
    kinds, wanted = _RESULTS[result]
    if kind not in {*kinds, "DYN"}:
        raise InvalidExpression(f"column 1: must be {wanted}, and is {kind.lower()}")
    tree = read_tree(program.serialize())
    for node, reason in (*_costs(tree), *find_unknown_fields(tree)):
        raise InvalidExpression(f"{_place(text, node.offset)}: {reason}")
    return Expression(text, about, _has_macro(tree), program, result)


@cache
def _environment(about: Subject) -> "cel.Env":
    from cel_expr_python import cel  # noqa: PLC0415 - 14 MB that not all agents need

    fields = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    texts = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)
    kinds = {"args": fields, "tool": fields, "agent": texts, "caller": texts}
    kinds |= {"body": cel.Type.DYN, "headers": texts}
    return cel.NewEnv(variables={name: kinds[name] for name in VARIABLES[about]})


def _has_macro(tree: Node) -> bool:
    return tree.kind == "comprehension" or any(map(_has_macro, tree.parts))


def _costs(node: Node, macros: int = 0) -> Iterator[tuple[Node, str]]:
    """Yield nodes that may be too costly: nested macros, and unbounded searches."""
    macros += node.kind == "comprehension"
    if macros > _MAX_MACROS:
        yield node, f"macros are nested at most {_MAX_MACROS} deep"
        return
    if node.kind == "call" and node.name == "matches":
        searched, pattern = node.parts
        if reason := _pattern_mistake(pattern):
            yield pattern, reason
        elif macros and (macros == _MAX_MACROS or _names_args(searched)):
            yield node, "inside a macro, `matches` searches only the macro's own element"
    for part in node.parts:
        yield from _costs(part, macros)


def _names_args(node: Node) -> bool:
    is_variable = node.kind == "ident" and node.name in {"args", "body"}
    return is_variable or any(map(_names_args, node.parts))


def _pattern_mistake(pattern: Node) -> str:
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
    value = _environment("tool").compile('"".matches(string(args.pattern))').eval(data=data)
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
    reason = re.sub("'?<EOF>'?", "the end", reason.replace(" (in container '')", ""))
    reason += _hint(text, found[3])
    place = f"column {column}" if "\n" not in text.strip() else f"line {line}, column {column}"
    return f"{place}: {_short(reason)}"


def _hint(text: str, message: str) -> str:
    """Return advice for the commonest mistakes of syntax."""
    if "token recognition error at: '= " in message:
        return "; write == to compare"
    if "token recognition error" in message and re.search(r"at: '[\"']", message):
        return "; a text ends with the quote that it begins with"
    if "extraneous input" in message and not re.search(r"[\"']", text):
        return "; a text stands in quotes of its own, such as '\"New issue\"'"
    return ""


def _place(text: str, offset: int) -> str:
    before = text[:offset]
    column = offset - (before.rfind("\n") + 1) + 1
    if "\n" not in text.strip():
        return f"column {column}"
    return f"line {before.count(chr(10)) + 1}, column {column}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 1]}…"
