"""What is started once for all tests of chaos."""

from collections.abc import Iterator

import pytest
from support.orders import Charges, charges


@pytest.fixture(scope="session")
def tools() -> Iterator[Charges]:
    """A tools' server that counts, in a process of its own."""
    with charges() as running:
        yield running
