"""The calculator of the demo: right, and impossible to hurt."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.demo.arithmetic import MAX_LENGTH, evaluate


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        pytest.param("2 + 2", 4, id="a sum"),
        pytest.param("2 + 3 * 4", 14, id="products before sums"),
        pytest.param("(2 + 3) * 4", 20, id="parentheses"),
        pytest.param("2 ** 3 ** 2", 512, id="powers from the right"),
        pytest.param("-2 ** 2", -4, id="a power before its sign"),
        pytest.param("6 / 3", 2, id="a quotient that is whole is shown so"),
        pytest.param("1 / 3", 0.333333333333, id="a fraction in twelve digits"),
        pytest.param("0.1 + 0.2", 0.3, id="without the noise of binary fractions"),
        pytest.param("1e3 - +1", 999, id="exponents and signs"),
        pytest.param("10 ** 200", 10**200, id="large whole numbers are exact"),
        pytest.param("-" * (MAX_LENGTH - 2) + "-1", -1, id="as deep as the length allows"),
    ],
)
def test_an_expression_is_worked_out(expression: str, result: float) -> None:
    assert evaluate(expression) == result
    assert type(evaluate(expression)) is type(result)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        pytest.param("", "only numbers", id="nothing"),
        pytest.param("   ", "not well formed", id="blanks"),
        pytest.param("2 +", "not well formed", id="half an expression"),
        pytest.param("2 ^ 2", "only numbers", id="an operator that is not known"),
        pytest.param("7 // 2", "only numbers", id="whole division"),
        pytest.param("(1)(2)", "only numbers", id="a call"),
        pytest.param("1 .real", "only numbers", id="an attribute"),
        pytest.param("e", "only numbers", id="a name"),
        pytest.param("__import__('os')", "only numbers", id="code"),
        pytest.param("1 / 0", "division by zero", id="division by zero"),
        pytest.param("0 ** -1", "division by zero", id="a power that divides by zero"),
        pytest.param("9 ** 9 ** 9", "digits", id="a tower of powers"),
        pytest.param("(9 ** 200) ** (9 ** 99)", "digits", id="a power of huge numbers"),
        pytest.param("2.5 ** 99999999999", "digits", id="a float that overflows"),
        pytest.param("1e999", "digits", id="infinity"),
        pytest.param("1e999 - 1e999", "digits", id="what is no number"),
        pytest.param("(-8) ** 0.5", "root", id="a root that is not real"),
        pytest.param("1+" * MAX_LENGTH + "1", "longer", id="too long"),
        pytest.param("(" * 99 + "1", "not well formed", id="parentheses that never close"),
    ],
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_what_makes_no_sense_or_is_too_much_is_refused_with_a_reason(
    expression: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        evaluate(expression)


@given(st.text(alphabet="0123456789.eE+-*/() ", max_size=40))
def test_nothing_that_can_be_typed_escapes(expression: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(evaluate(expression), int | float)
