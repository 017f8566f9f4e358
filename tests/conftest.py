"""What holds for every test, and the order in which tests run."""

import copy
import gc
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from xdist.scheduler import LoadScopeScheduling

from diptych.net.redaction import SECRETS

# No test is timed: a machine that has other work stops a process for a second.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, which doubles its time in each process.

    What is collected stays, so there is no garbage to find, neither now nor in any test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


ASK_AN_API = (
    "tests/admission/",
    "tests/diptych_operator/test_crd_versions.py",
    "tests/diptych_operator/test_kinds_api.py",
    "tests/diptych_operator/test_real_api.py",
)


class OneApi(LoadScopeScheduling):
    """Gives each process its next test when it is free; one process asks the real API server.

    A server takes seconds of both cores to start. Marks of `xdist_group` are lost with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "api" if nodeid.startswith(ASK_AN_API) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return OneApi(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes ten seconds or more, and so begins early")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin long tests first, one of each file in turn: two of a file may need a whole machine."""
    turns: Counter[Path] = Counter()

    def place(item: pytest.Item) -> tuple[bool, int]:
        is_long = item.get_closest_marker("long") is not None
        turns[item.path] += is_long
        return not is_long, turns[item.path] if is_long else 0

    items.sort(key=place)


@pytest.fixture(autouse=True, scope="session")
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what commands keep by default out of the state folder of the one who tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    """One browser for all tests of the page: each has a context of its own."""
    from support.browser import chromium  # noqa: PLC0415 - few tests need it

    async with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def _secrets_end_with_their_test() -> Iterator[None]:
    """A process remembers secrets until it ends; the next test's words are no secrets of this one.

    Some tests give a whole file of manifests for a secret, and `researcher` was redacted after.
    """
    before = copy.deepcopy(vars(SECRETS))
    yield
    vars(SECRETS).update(before)
