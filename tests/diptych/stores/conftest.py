"""One Redis for the tests of a module that need no settings of their own."""

from collections.abc import Iterator

import pytest
from support.redis_server import RedisServer, redis_server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server
