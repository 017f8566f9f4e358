"""Text from outside, made fit for records and models."""

import pytest

from diptych.core.text import (
    RESULT_BYTES,
    bounded,
    is_shortened,
    one_line,
    several_lines,
    shortened,
    well_formed,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("\ud83d\ude00!", "😀!", id="the halves of a pair"),
        pytest.param("a\ud83db", "a\ufffdb", id="the first half alone"),
    ],
)
def test_text_is_made_fit_for_utf_8(text, expected):
    assert well_formed(text) == expected


def test_a_result_is_never_cut_within_a_character():
    shown, _, mark = bounded("xx" + "€" * (RESULT_BYTES // 3 + 1)).partition("\n")
    assert (RESULT_BYTES - 2) % 3
    assert shown == "xx" + "€" * ((RESULT_BYTES - 2) // 3)
    assert mark.startswith("[cut: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(" a\n\tb\u2028c\x85 ", "a b c", id="white space"),
        pytest.param("\x1b[0m\x00\x7f", r"\x1b[0m\x00\x7f", id="control characters"),
        pytest.param("\u202eabc\u200b", r"\u202eabc\u200b", id="marks that nobody sees"),
        pytest.param("\U000e0041", r"\U000e0041", id="tags, which spell hidden text"),
        pytest.param("بی\u200cتو 👩\u200d🚒", "بی\u200cتو 👩\u200d🚒", id="joiners"),
    ],
)
def test_a_text_of_somebody_else_takes_one_line_on_which_everything_is_seen(text, line):
    assert one_line(text) == line


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (" a\tb\r\n  - c\n", "a b\n- c"),
        ("\n\na\n \n\t\n\n\nb", "a\n\nb"),
        ("a\u2028## b\x85\x1b[0m", r"a ## b \x1b[0m"),
    ],
)
def test_a_longer_text_of_somebody_else_keeps_its_line_breaks(text, kept):
    assert several_lines(text) == kept


def test_a_long_text_is_cut_with_a_mark_after_its_blanks_are_collapsed():
    assert several_lines("x" + " " * 4_000 + "y" + "\n" * 4_000 + "z", 20) == "x y\n\nz"
    assert [is_shortened(several_lines("x\n" * n, 20)) for n in (10, 11)] == [False, True]
    assert shortened("x" * 20, 20) == "x" * 20
    assert shortened("x" * 21, 20) == "x" * 12 + " … [cut]"
    assert one_line("x\n" * 21, 20) == "x x x x x x  … [cut]"
