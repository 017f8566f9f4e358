"""The suite's own coverage."""

import sys

import pytest


@pytest.mark.no_cover
def test_what_is_to_be_untraced_is_untraced():
    """In a process of xdist, too: tracing makes Python more than twice as slow."""
    assert sys.gettrace() is None
