"""What the cases share: a cluster, the image, a release of the chart; and a namespace for each.

Run them with `make e2e`, some with `make e2e ARGS="-k secret"`. See `harness.clusters` for the
settings.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import clusters, release, telling
from harness.clusters import Cluster
from harness.release import Release
from harness.sharing import Run
from harness.space import Space, space_of

RUN = pytest.StashKey[Run]()


def pytest_configure(config: pytest.Config) -> None:
    telling.begin()
    config.addinivalue_line("markers", "alone(leaves_release=False): nothing runs beside")
    config.addinivalue_line("markers", "long: waits for long, and so begins early")
    config.addinivalue_line("markers", "nightly: slow and rare; CI leaves it out")
    folder = getattr(config, "workerinput", {}).get("run")
    config.stash[RUN] = Run(folder and Path(folder))
    if not folder:  # a run that is told to end cleans up as one that is interrupted
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["run"] = str(node.config.stash[RUN].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    run = config.stash[RUN]
    try:
        release.end(run)
        clusters.end(run)
    finally:
        shutil.rmtree(run.folder)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if report.outcome == "rerun" and not is_worker:  # whose reason pytest tells nobody
        telling.say(f"{report.nodeid} is run again:\n{report.longreprtext[-3000:]}")


CASE_SECONDS = 1_800  # with the making of the cluster, and the wait for cases that run alone


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> tuple[bool, bool]:
        return bool(item.get_closest_marker("alone")), not item.get_closest_marker("long")

    items.sort(key=order)
    for item in items:
        item.add_marker(pytest.mark.timeout(CASE_SECONDS))


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config) -> Run:
    return pytestconfig.stash[RUN]


@pytest.fixture(scope="session")
def cluster(run: Run) -> Cluster:
    return clusters.cluster(run)


@pytest.fixture
def diptych(cluster: Cluster, run: Run, request: pytest.FixtureRequest) -> Iterator[Release]:
    """The chart, installed with its defaults; a case that is marked `alone` may change that.

    Its end installs it again, unless the mark says `leaves_release=True`: three seconds, in which
    nothing runs.
    """
    found = release.installed(run, cluster)
    alone = request.node.get_closest_marker("alone")
    with run.turn(alone=bool(alone)):
        yield found
        if alone and not alone.kwargs.get("leaves_release"):
            found.install()


@pytest.fixture
def space(diptych: Release, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace of the test's own, watched by the operator."""
    with space_of(diptych, request.node.name) as made:
        yield made


@pytest.fixture
def other_space(diptych: Release, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A second one."""
    with space_of(diptych, f"2-{request.node.name}") as made:
        yield made
