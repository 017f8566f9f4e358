"""What the cases share: a cluster, the image, a release of the chart; and a namespace for each.

Run them with `make e2e`, some with `make e2e ARGS="-k secret"`. See `harness.clusters` for the
settings.
"""

from collections.abc import Iterator

import pytest
from harness import clusters, release
from harness.clusters import Cluster
from harness.release import Release
from harness.space import Space, space_of


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "last: changes the release for all; such cases run last")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with clusters.cluster() as found:
        yield found


@pytest.fixture(scope="session")
def diptych(cluster: Cluster) -> Iterator[Release]:
    """The chart, installed with its defaults."""
    found = release.installed(cluster.env, cluster.image())
    yield found
    if not cluster.is_ours and not clusters.keeps():
        release.removed(found)


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
