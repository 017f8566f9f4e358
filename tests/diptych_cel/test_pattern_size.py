"""The size of a compiled pattern is never taken to be less than it is."""

import pytest

from diptych_cel.pattern_size import pattern_size

CLASS = 20


@pytest.mark.parametrize(
    ("pattern", "at_least", "at_most"),
    [
        ("abc", 3, 10),
        ("((a|b){50}){19}c", 950 * 3, 950 * 8),
        ("^https://([a-z0-9-]{1,63}\\.){1,5}example\\.com/", 5 * 64, 2_500),
        ("[a-f0-9]{32,}", 33, 400),
        ("a{3}b{4}", 7, 30),
        ("[](]{900}", 900, 9_000),
        ("[^]()[:alpha:]\\]]{900}", 900, 9_000),
        ("(a[)]b\\)c){900}", 900 * 4, 900 * 20),
        ("(\\Q)\\Eabcdefgh){900}", 900 * 10, 10**9),
        ("\\pL{9}", 9 * CLASS, 9 * CLASS + 50),
        ("[\\pL\\p{Greek}]{9}", 18 * CLASS, 18 * CLASS + 90),
        ("(?i)k{100}", 200, 400),
        ("ж{100}", 200, 1_000),
        ("\\x{1F600}{100}", 400, 500),
    ],
)
def test_counted_repeats_are_written_out(pattern, at_least, at_most):
    assert at_least <= pattern_size(pattern, CLASS) <= at_most


@pytest.mark.parametrize("pattern", ["a)", "((", "[", "{3}", "a{2}{3}", "\\", "", "(?", "[a", "**"])
def test_what_re2_refuses_has_a_size_too(pattern):
    assert pattern_size(pattern, CLASS) > 0
