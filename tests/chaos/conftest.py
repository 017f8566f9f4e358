"""What is started once for many tests of chaos."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.callers import client
from support.one_text import MOCK
from support.orders import Charges, charges
from support.pods import PodProcess, all_ready, pod_processes
from support.redis_server import RedisServer, redis_server
from support.scene import Scene

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


@pytest.fixture(scope="module")
def standing() -> Iterator[tuple[RedisServer, list[PodProcess]]]:
    """A store that saves, and two pods."""
    with (
        redis_server(*SAVES) as redis,
        pod_processes(redis.url, DEBUG_MOCK_RESPONSES=MOCK) as pods,
    ):
        yield redis, pods


@pytest.fixture
async def on(standing: tuple[RedisServer, list[PodProcess]]) -> AsyncIterator[Scene]:
    """What stands, healthy, and what is seen of it by this test; it stays what it is."""
    redis, pods = standing
    redis.ask("CONFIG", "SET", "maxmemory", 0)
    await all_ready(pods)
    pids = [pod.pid for pod in pods]
    async with client() as http, asyncio.TaskGroup() as group:
        found = Scene(redis, pods, http)
        watching = group.create_task(found.watch_the_machine())
        yield found
        watching.cancel()
    assert [pod.pid for pod in pods if pod.is_running] == pids
