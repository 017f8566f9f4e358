"""CEL expressions of a policy: checked when a manifest is read, evaluated for each call.

The library is Google's own (decision 138). It is imported only where there is an expression.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson

from diptych_cel.call_fields import find_unknown_fields
from diptych_cel.cost import COST_LIMIT, estimate
from diptych_cel.openings import Opening, Openings, find_opening
from diptych_cel.syntax_tree import Node, read_tree

if TYPE_CHECKING:
    from cel_expr_python import cel

About: TypeAlias = Literal["tool", "agent"]
"""What a rule is about: calls of tools, or delegations to agents."""
CALL_VARIABLES: Mapping[About, tuple[str, ...]] = {
    "tool": ("args", "tool", "caller"),
    "agent": ("args", "agent", "caller"),
}
"""The variables of an expression, by what its rule is about. Each is a map."""
MAX_EXPRESSION = 2_048  # characters
USUAL_ARGS = 4_096  # characters of JSON, for which an expression must not be too costly
USUAL_ELEMENTS = 512  # of all lists and maps in these
_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The character as JSON writes it; its backslash is not the second of a pair."""
_MAX_REASON = 200  # characters
_REMEDY = "hold each element against itself or constants only"


class InvalidExpression(ValueError):
    """An expression that is wrong or too costly; the message begins with the place of it."""


class EvaluationFailed(Exception):
    """An expression gave no truth value for a call."""


class CallFacts:
    """What the expressions of a policy know of one call, by `CALL_VARIABLES`.

    `others` gives the variables beside the arguments, once an expression is evaluated.
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
        self._activation: cel.Activation | None = None
        self._cost = 0  # of all evaluations that the activation was for
        self._args_size: tuple[int, int] | None = None

    def activation(self, cost: int) -> "cel.Activation":
        """Give the variables as the library reads them, for an evaluation of such a cost.

        It reads them once, as that takes longer than most evaluations. Whatever these make is kept
        in memory with it: so all that share one cost together no more than one of them may.
        """
        self._cost += cost
        if self._activation is None or self._cost > COST_LIMIT:
            others = self._others()
            if any("\0" in str(text) for text in others.get("caller", {}).values()):
                raise EvaluationFailed("the caller's name holds a NUL character")
            data = {"args": self._args, **others}
            self._activation = _environment(self._about).Activation(data=data)
            self._cost = cost
        return self._activation

    @property
    def args_size(self) -> tuple[int, int]:
        """The bytes of the arguments as JSON, and how many elements are in them at most.

        Raises `EvaluationFailed` if they are no JSON, or hold a NUL: the library reads a text only
        up to there, and what follows would be hidden from every rule.
        """
        if self._args_size is None:  # not a cached property, whose lock takes longer than this
            try:
                written = orjson.dumps(self._args)
            except (TypeError, RecursionError) as error:
                raise EvaluationFailed("the arguments are no plain JSON") from error
            if b"\\u0000" in written and _NUL.search(written):
                raise EvaluationFailed("the arguments hold a NUL character")
            self._args_size = len(written), written.count(b",") + 1
        return self._args_size

    def are_ruled_out(self, openings: Openings) -> bool:
        """Whether conditions that open so are false for the arguments, all of which can be read."""
        try:
            return openings.rule_out(self._args) and self.has_usual_args
        except EvaluationFailed:
            return False

    @property
    def has_usual_args(self) -> bool:
        """Whether the costs hold that expressions have been checked for. Raises as `args_size`."""
        size, elements = self.args_size
        return size <= USUAL_ARGS and elements <= USUAL_ELEMENTS


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression. `text` is its source, `usual_cost` for arguments of usual size."""

    text: str
    about: About
    usual_cost: int
    _program: "cel.Expression"
    _tree: Node

    @property
    def is_joinable(self) -> bool:
        """Whether it may be part of a `Disjunction`.

        One that iterates may not: the iterations of one evaluation are limited, in all its parts.
        """
        return not any(node.kind == "comprehension" for node in _nodes(self._tree))

    @property
    def opening(self) -> Opening | None:
        """What it asks of an argument before all else, if that is simple enough."""
        return find_opening(self._tree)

    def holds(self, facts: CallFacts) -> bool:
        """Evaluate it. Raises `EvaluationFailed` if it fails, is too costly, or is no bool."""
        cost = self.usual_cost
        if not facts.has_usual_args:
            cost = estimate(self._tree, *facts.args_size).cost
        if cost > COST_LIMIT:
            raise EvaluationFailed("the arguments are too long for this rule")
        try:
            value = self._program.eval(facts.activation(cost))
            plain = value.plain_value()
            kind = "BOOL" if isinstance(plain, bool) else value.type().name()
        except Exception as error:  # the library's own, whatever it is: fail closed
            raise EvaluationFailed(_short(str(error))) from error
        if kind != "BOOL":
            reason = str(plain) if kind == "ERROR" else f"it is {kind.lower()}, not true or false"
            raise EvaluationFailed(_short(reason))
        return bool(plain)


class Disjunction:
    """Some expressions as one, which says of most calls at once that none of them holds.

    Each evaluation costs 2 µs, whatever the expression; this is one for all.
    """

    def __init__(self, expressions: Sequence[Expression]) -> None:
        """Raises `ValueError` for expressions that cannot be one."""
        about = {each.about for each in expressions}
        self._cost = sum(each.usual_cost for each in expressions)
        if len(about) != 1 or self._cost > COST_LIMIT:
            raise ValueError("they are about different things, or too costly together")
        # Each stands on lines of its own, as it may end with a comment.
        text = " || ".join(f"({each.text}\n)" for each in expressions)
        try:
            self._program = _environment(about.pop()).compile(text)
        except RuntimeError as error:  # such as a depth that each of them just had
            raise ValueError(_short(str(error))) from None

    def is_false(self, facts: CallFacts) -> bool:
        """Whether every one of them is surely false, and none fails; else each is to be asked."""
        try:
            if not facts.has_usual_args:
                return False
            value = self._program.eval(facts.activation(self._cost))
            return value.plain_value() is False
        except Exception:  # noqa: BLE001 - each of them says for itself what is wrong
            return False


def check_expression(text: str, about: About) -> Expression:
    """Check an expression of a rule about tools or agents. Raises `InvalidExpression`."""
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
    for pattern in _patterns(tree):
        _check_pattern(text, pattern, environment)
    for node, reason in find_unknown_fields(tree):
        raise InvalidExpression(f"{_place(text, node.offset)}: {reason}")
    usual = estimate(tree, USUAL_ARGS, USUAL_ELEMENTS)
    if usual.cost > COST_LIMIT:
        place = _place(text, usual.worst.offset if usual.worst else 0)
        is_search = usual.worst is not None and usual.worst.kind == "call"
        remedy = "use a constant pattern with fewer repeats" if is_search else _REMEDY
        raise InvalidExpression(f"{place}: is too costly; {remedy}")
    return Expression(text, about, usual.cost, program, tree)


@cache
def _environment(about: About) -> "cel.Env":
    from cel_expr_python import cel  # noqa: PLC0415 - 14 MB that only policies need

    fields = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    texts = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)
    kinds = {"args": fields, "tool": fields, "agent": texts, "caller": texts}
    return cel.NewEnv(variables={name: kinds[name] for name in CALL_VARIABLES[about]})


def _patterns(tree: Node) -> Iterator[Node]:
    """Find the constant patterns of an expression."""
    for node in _nodes(tree):
        if node.kind == "call" and node.name == "matches" and node.parts[-1].kind == "const":
            yield node.parts[-1]


def _nodes(tree: Node) -> Iterator[Node]:
    yield tree
    for part in tree.parts:
        yield from _nodes(part)


def _check_pattern(text: str, pattern: Node, environment: "cel.Env") -> None:
    data: dict[str, Any] = {"args": {"pattern": pattern.text}}
    value = environment.compile('"".matches(string(args.pattern))').eval(data=data)
    if value.type().name() != "BOOL":
        reason = str(value.plain_value()).partition("invalid regular expression: ")[2]
        place = _place(text, pattern.offset)
        raise InvalidExpression(f"{place}: is no regular expression (RE2): {_short(reason)}")


def _mistake(text: str, message: str) -> str:
    """Say where and what a mistake is, in a line."""
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
