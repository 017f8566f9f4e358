"""Evaluates `+ - * / ** ( )` without running code and within bounds on every number. Pure."""

import ast
import operator
import re
from collections.abc import Callable, Mapping

MAX_LENGTH = 200  # characters
MAX_DIGITS = 300  # of the result and of every intermediate number
_ALLOWED = re.compile(r"[0-9eE.+\-*/() ]+")
_SIGNIFICANT_DIGITS = 12  # of a fraction; binary arithmetic adds noise behind them

Number = int | float

_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: str) -> Number:
    """Evaluate an expression. Raises `ValueError`, whose message is for a person."""
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"the expression is longer than {MAX_LENGTH} characters")
    if not _ALLOWED.fullmatch(expression):
        raise ValueError("only numbers, + - * / ** and parentheses are understood")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError("the expression is not complete, or not well formed") from error
    try:
        return _rounded(_value(tree.body))
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error
    except OverflowError as error:
        raise _too_large() from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _value(inner)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            apply = _OPERATORS[type(sign)]
            return _bounded(apply(_value(left), _value(right)))
        case _:
            raise ValueError("only numbers, + - * / ** and parentheses are understood")


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) * _digits(base) > MAX_DIGITS:
        raise _too_large()
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("a negative number has no such root")  # noqa: TRY004 - an input that is wrong
    return _bounded(result)


def _digits(number: Number) -> float:
    """Return the least number of decimal digits of a number; a power multiplies it."""
    return int(abs(number)).bit_length() * 0.302 if abs(number) >= 1 else 1


def _bounded(number: Number) -> Number:
    if number != number or abs(number) > 10**MAX_DIGITS:  # noqa: PLR0124 - only nan is not itself
        raise _too_large()
    return number


def _rounded(number: Number) -> Number:
    if isinstance(number, int):
        return number
    rounded = float(f"{number:.{_SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def _too_large() -> ValueError:
    return ValueError(f"a number has more than {MAX_DIGITS} digits")
