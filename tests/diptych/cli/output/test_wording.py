"""Calls, texts and times in a few words."""

import pytest

from diptych.cli.output.wording import duration, one_line, unavailable_text
from diptych.loop.catalog import Unavailable


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(-0.1, "0 ms", id="a clock that was set back"),
        pytest.param(0.0124, "12 ms", id="milliseconds"),
        pytest.param(1.26, "1.3 s", id="seconds"),
        pytest.param(125, "2 min 5 s", id="minutes"),
    ],
)
def test_a_time_is_as_exact_as_a_person_wants_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_text_is_put_on_one_line_and_cut() -> None:
    assert one_line("one\n  two\tthree", 20) == "one two three"
    assert one_line("one two three", 7) == "one tw…"
    assert one_line({"a": [1, "ü"]}, 20) == '{"a": [1, "ü"]}'


def test_what_is_missing_is_named() -> None:
    assert unavailable_text(Unavailable("server", "bank", "gone")) == "the tools of bank: gone"
    assert unavailable_text(Unavailable("agent", "eve", "gone")) == "the agent eve: gone"
