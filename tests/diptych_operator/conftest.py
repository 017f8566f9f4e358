"""A real Kubernetes API with our CRDs, for all tests here that do not change them.

Skipped, in capitals, where Kubernetes' programs are not (`tools/cluster`).
"""

from collections.abc import Iterator

import pytest
from support.real_api import RealApi, install_all, kube, real_api

from diptych_operator.resources.kinds import NAMESPACE


@pytest.fixture(scope="session")
def kube_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    if (program := kube()) is None:
        pytest.skip("there is no kube-apiserver: THE REAL API WAS NOT TRIED")
    with real_api(program, tmp_path_factory.mktemp("api")) as found:
        install_all(found)
        found.create(NAMESPACE, {"metadata": {"name": "team"}})
        yield found
