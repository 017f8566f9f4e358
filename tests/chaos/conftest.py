"""What is started once for many tests of chaos."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.one_text import MOCK
from support.orders import Charges, charges
from support.scene import Scene, scene

FOLDER = Path(__file__).parent
SAVES = ("--appendonly", "yes", "--appendfsync", "everysec")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == FOLDER:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def _tool_server() -> Iterator[Charges]:
    """A tools' server that counts, in a process of its own."""
    with charges() as running:
        yield running


@pytest.fixture
def tools(_tool_server: Charges) -> Charges:
    """The tools' server, which tells what this test, or this run of it, has started."""
    _tool_server.begin_anew()
    return _tool_server


@pytest.fixture
async def on() -> AsyncIterator[Scene]:
    """Two pods on a store that saves; whatever befalls it, they stay the same processes."""
    async with scene(*SAVES, DEBUG_MOCK_RESPONSES=MOCK) as found:
        pids = [pod.pid for pod in found.pods]
        yield found
        assert [pod.pid for pod in found.pods if pod.is_running] == pids
