"""A cluster in which an operator and one Agent are well, as doubles of kubectl answer for it."""

from typing import Any

import pytest
from support.cluster_objects import CRD, agent, deployment, items, lease


@pytest.fixture
def cluster(programs: Any) -> Any:
    programs.answer("customresourcedefinitions", out=CRD)
    programs.answer("deployments.apps", out=items(deployment()))
    programs.answer("leases.coordination.k8s.io", "--namespace=diptych-system", out=lease())
    programs.answer("get agents.diptych.dev", out=items(agent("helper")))
    for kind in ("modelapis", "mcpservers", "agentpools"):
        programs.answer(f"get {kind}.diptych.dev", out=items())
    programs.answer("get deployments.apps,pods", out=items())
    programs.answer("leases.coordination.k8s.io", "--all-namespaces", out=items())
    programs.answer("config", "view", out="")
    return programs
