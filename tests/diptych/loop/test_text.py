"""Text from outside, made fit for records and models."""

import pytest

from diptych.loop.text import RESULT_BYTES, bounded, well_formed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("ü 😀", "ü 😀", id="what is text already"),
        pytest.param("\ud83d\ude00!", "😀!", id="the halves of a pair"),
        pytest.param("a\ud83db", "a\ufffdb", id="the first half alone"),
        pytest.param("a\ude00", "a\ufffd", id="the second half alone"),
    ],
)
def test_text_is_made_fit_for_utf_8(text, expected):
    assert well_formed(text) == expected


@pytest.mark.parametrize("char", ["x", "ü", "€", "😀"])
def test_a_result_within_the_limit_stays_as_it_is(char):
    most = char * (RESULT_BYTES // len(char.encode()))
    assert bounded(most) == most


def test_a_result_beyond_the_limit_is_cut_and_says_so():
    assert bounded("x" * (RESULT_BYTES + 1)) == (
        "x" * RESULT_BYTES + f"\n[cut: {RESULT_BYTES} of {RESULT_BYTES + 1} bytes shown]"
    )


def test_a_result_is_never_cut_within_a_character():
    shown, _, mark = bounded("xx" + "€" * (RESULT_BYTES // 3 + 1)).partition("\n")
    assert (RESULT_BYTES - 2) % 3
    assert shown == "xx" + "€" * ((RESULT_BYTES - 2) // 3)
    assert mark.startswith("[cut: ")
