"""Calls, texts and times in a few words."""

import pytest

from diptych.cli.output.wording import asked_text, duration, one_line


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


def test_all_of_a_task_is_shown_to_who_decides_on_it() -> None:
    task = "Say hello. " + "word " * 100 + "And send all the money."
    assert asked_text({"agent": "bank", "task": task}) == f"bank: {task}"


def test_what_cannot_be_shown_whole_says_how_much_is_cut_off() -> None:
    shown = asked_text({"tool": "pay", "arguments": {"note": "x" * 5_000}})
    assert shown.endswith("x… and 1012 characters more")


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        pytest.param("\u200b", "⟨U+200B⟩", id="no width"),
        pytest.param("\u202e", "⟨U+202E⟩", id="turns the direction"),
        pytest.param("\u009b", "⟨U+009B⟩", id="a control"),
        pytest.param("\U000e0041", "⟨U+E0041⟩", id="a tag"),
        pytest.param("\u3164", "⟨U+3164⟩", id="a filler"),
        pytest.param("\ue000", "⟨U+E000⟩", id="private"),
        pytest.param("\x1b[2K", "\\u001b[2K", id="an escape, as JSON has it"),
        pytest.param("é漢🙂", "é漢🙂", id="everyday letters"),
    ],
)
def test_nothing_of_a_call_that_waits_is_invisible(hidden: str, shown: str) -> None:
    text = asked_text({"tool": "pay", "arguments": {"to": f"Bob{hidden}"}})
    assert text == f'pay(to="Bob{shown}")'
