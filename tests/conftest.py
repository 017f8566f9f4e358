"""What holds for every test."""

import copy
from collections.abc import Iterator

import pytest

from diptych.net.redaction import SECRETS


@pytest.fixture(autouse=True)
def _secrets_end_with_their_test() -> Iterator[None]:
    """A process remembers secrets until it ends; the next test's words are no secrets of this one.

    Some tests give a whole file of manifests for a secret, and `researcher` was redacted after.
    """
    before = copy.deepcopy(vars(SECRETS))
    yield
    vars(SECRETS).update(before)
