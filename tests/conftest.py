"""What holds for every test, and the order in which tests run."""

import copy
import fcntl
import functools
import gc
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import coverage
import hypothesis
import pytest
from support.order import LAST, LONG, TIMELESS, UNTRACED

from diptych.net.redaction import SECRETS

# No test is timed: a machine that has other work stops a process for a second.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """End the coverage that pytest-cov begins in a process of xdist before it knows what that is.

    It begins another one, and keeps only that one's data; the first would go on while the second
    pauses, so that no test would be untraced.
    """
    if hasattr(session.config, "workerinput") and (first := coverage.Coverage.current()):
        first.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without what doubles its time, in each process: garbage collection, and coverage.

    What is collected stays, so there is no garbage to find, neither now nor in any test. Coverage
    sees the lines that run at import in one process, the first.
    """
    tracing = None if _sees_imports() else coverage.Coverage.current()
    if tracing:
        tracing.stop()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        if tracing:
            tracing.start()


def _sees_imports() -> bool:
    return os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the timeless tests first: the others may have to wait for a machine that is quiet.

    Of each kind the long ones come first, one of each file in turn: processes take neighbours at
    the same time, and two of a file, as two floods, may both need the whole machine.
    """
    turns: Counter[Path] = Counter()

    def place(item: pytest.Item) -> tuple[bool, bool, bool, int]:
        is_long, is_last = item.nodeid.startswith(LONG), item.nodeid.startswith(LAST)
        turns[item.path] += is_long
        turn = turns[item.path] if is_long else 0
        return not _is_timeless(item), is_last, not is_long, turn

    items.sort(key=place)
    for item in items:
        if item.nodeid.startswith(UNTRACED):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not _is_timeless(item):
        _wait_until_quiet()
    return (yield)


@functools.cache
def _wait_until_quiet() -> None:
    """Wait until nobody has the lock on the file `TESTS_QUIET`, if there is one (`.ci/run`)."""
    if name := os.environ.get("TESTS_QUIET"):
        with Path(name).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def _is_timeless(item: pytest.Item) -> bool:
    is_virtual = hasattr(getattr(item, "function", None), "is_virtual")
    return is_virtual or item.nodeid.startswith(TIMELESS)


@pytest.fixture(autouse=True)
def _secrets_end_with_their_test() -> Iterator[None]:
    """A process remembers secrets until it ends; the next test's words are no secrets of this one.

    Some tests give a whole file of manifests for a secret, and `researcher` was redacted after.
    """
    before = copy.deepcopy(vars(SECRETS))
    yield
    vars(SECRETS).update(before)
