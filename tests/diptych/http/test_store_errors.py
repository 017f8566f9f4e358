"""What callers are told where a store, or the owner of a run, fails."""

import pytest

from diptych.core.errors import NotAnswered, StoreError, StoreFull
from diptych.http.errors import store_failure


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (StoreError("NOAUTH at redis"), "store_away", "the record of runs cannot be reached now"),
        (StoreFull("OOM"), "store_full", "the store of runs has no room left now"),
        (NotAnswered("send it again"), "not_answered", "send it again"),
    ],
)
def test_advice_of_ours_is_told_and_words_of_a_library_are_not(error, code, told):
    assert store_failure(error) == (code, told)
