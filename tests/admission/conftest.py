"""A real Kubernetes API with the chart's roles and admission policies in force.

Skipped, in capitals, where Kubernetes' programs are not (`tools/cluster`).
"""

from collections.abc import Iterator

import pytest
from support.admission import served
from support.real_api import RealApi, kube


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    if (program := kube()) is None:
        pytest.skip("there is no kube-apiserver: THE ADMISSION POLICIES WERE NOT TRIED")
    with served(program, tmp_path_factory.mktemp("api")) as found:
        yield found
