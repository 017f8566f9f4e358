"""Whose an object is."""

import pytest
from support.agents import agent

from diptych_operator.resources.agent import (
    controller_of,
    has_lost_its_owner,
    is_controlled_by,
    is_owned_by,
)

APPLIED = {"manager": "diptych", "operation": "Apply"}
OURS = {"kind": "Agent", "name": "coordinator", "uid": "coordinator-1", "controller": True}
FORMER = {**OURS, "uid": "another"}
NO_CONTROLLER = {**OURS, "controller": False}


def live(*owners, managers=()):
    return {"metadata": {"ownerReferences": list(owners), "managedFields": list(managers)}}


@pytest.mark.parametrize(
    ("content", "is_owned", "is_controlled"),
    [
        pytest.param(live(OURS), True, True, id="controlled by the Agent"),
        pytest.param(live(FORMER), False, False, id="by a former Agent of its name"),
        pytest.param(live(FORMER, managers=[APPLIED]), False, False, id="and applied by us"),
        pytest.param(live(managers=[APPLIED]), True, False, id="applied, without an owner"),
        pytest.param(live(NO_CONTROLLER), False, False, id="an owner that does not control"),
        pytest.param(live(NO_CONTROLLER, OURS), True, True, id="a controller among the owners"),
        pytest.param(
            live(managers=[{**APPLIED, "manager": "helm"}]), False, False, id="applied by another"
        ),
        pytest.param(
            live(managers=[{**APPLIED, "operation": "Update"}]), False, False, id="only updated"
        ),
        pytest.param({"metadata": {}}, False, False, id="nothing is known"),
    ],
)
def test_the_controller_decides_on_ownership(content, is_owned, is_controlled):
    assert is_owned_by(content, agent()) is is_owned
    assert is_controlled_by(content, agent()) is is_controlled


def test_an_object_has_lost_its_owner_if_the_operator_has_written_it():
    written = {"manager": "diptych", "operation": "Update"}
    assert has_lost_its_owner(live(managers=[written]))
    assert not has_lost_its_owner(live(OURS, managers=[written]))
    assert not has_lost_its_owner(live(managers=[{**written, "manager": "helm"}]))
    assert controller_of(live()) is None
