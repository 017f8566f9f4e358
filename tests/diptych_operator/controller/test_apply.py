"""A child that others have edited so that it cannot be applied any more is repaired."""

import pytest
from support.agents import agent_object
from support.reconciler_harness import NAME, served

from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, SERVICE


@pytest.fixture
async def harness():
    async with served() as found:
        found.api.put(AGENT, agent_object())
        await found.until_done()
        found.api.settle()
        await found.until_done()
        yield found


def another_port(content):
    content["spec"]["ports"] = [{"name": "http", "port": 9999, "targetPort": 9999}]


def another_container_port(content):
    container = content["spec"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"name": "http", "containerPort": 9999, "protocol": "TCP"}]


def another_selector(content):
    content["spec"]["selector"] = {"matchLabels": {"app": "theirs"}}


def recreate(api, kind, change):
    """Put another object into the place of the agent's, with the agent as its owner."""
    content = dict(api.get(kind, NAME))
    api.remove(kind, NAME)
    change(content)
    content["metadata"] = {
        key: content["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")
    }
    api.put(kind, content)


def spec(harness, kind):
    return harness.api.get(kind, NAME)["spec"]


def refusals(harness):
    return [write for write in harness.api.writes if write[2] == 422]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(SERVICE, another_port, id="a Service's port under the same name"),
        pytest.param(DEPLOYMENT, another_container_port, id="a container's port likewise"),
    ],
)
async def test_k6_an_edit_that_makes_applying_invalid_is_overwritten(harness, kind, change):
    before = spec(harness, kind)
    harness.api.edit(kind, NAME, change)
    harness.api.writes.clear()
    await harness.until_done()
    assert spec(harness, kind) == before
    assert len(refusals(harness)) == 1
    assert harness.conditions()["Accepted"] == ("True", "Accepted")


async def test_an_allocated_address_and_labels_of_others_survive_overwriting(harness):
    def change(content):
        another_port(content)
        content["metadata"]["labels"]["theirs"] = "x"
        content["metadata"]["annotations"]["theirs"] = "y"
        content["spec"]["clusterIP"] = "10.96.7.7"

    harness.api.edit(SERVICE, NAME, change)
    await harness.until_done()
    found = harness.api.get(SERVICE, NAME)
    assert found["spec"]["clusterIP"] == "10.96.7.7"
    assert found["metadata"]["labels"]["theirs"] == "x"
    assert found["metadata"]["annotations"]["theirs"] == "y"
    assert found["metadata"]["annotations"]["diptych.dev/applied"]


async def test_a_field_that_is_no_longer_desired_is_removed_after_overwriting_too(harness):
    template = {"spec": {"nodeSelector": {"disk": "ssd"}}}
    harness.api.put(AGENT, agent_object(podTemplate=template))

    def change(content):
        another_container_port(content)
        content["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "none"}

    harness.api.edit(DEPLOYMENT, NAME, change)
    await harness.until_done()
    assert spec(harness, DEPLOYMENT)["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}
    harness.api.put(AGENT, agent_object())
    await harness.until_done()
    assert "nodeSelector" not in spec(harness, DEPLOYMENT)["template"]["spec"]


async def test_an_object_that_the_agent_does_not_control_is_not_overwritten(harness):
    def change(content):
        another_port(content)
        del content["metadata"]["ownerReferences"]

    harness.api.edit(SERVICE, NAME, change)
    assert await harness.reconcile() == 30
    assert spec(harness, SERVICE)["ports"][0]["port"] == 9999
    assert harness.conditions()["Accepted"] == ("False", "Refused")


async def test_an_object_that_has_changed_in_between_is_reconciled_again(harness):
    def before(request, content):
        if "json-patch" in request.content_type:
            harness.api.before = lambda *_: None
            harness.api.edit(SERVICE, NAME, lambda c: c["metadata"]["labels"].update(new="x"))

    harness.api.edit(SERVICE, NAME, another_port)
    harness.api.before = before
    with pytest.raises(ApiError):
        await harness.reconcile()
    await harness.until_done()
    assert spec(harness, SERVICE)["ports"][0]["port"] == 8000
    assert harness.api.get(SERVICE, NAME)["metadata"]["labels"]["new"] == "x"


def with_a_port_twice():
    ports = [{"name": "http", "containerPort": 9000}]
    container = {"name": "agent", "ports": ports}
    return agent_object(podTemplate={"spec": {"containers": [container]}})


async def test_a_fault_of_the_manifest_is_reported_and_the_live_object_stays(harness):
    before = harness.api.get(DEPLOYMENT, NAME)
    harness.api.put(AGENT, with_a_port_twice())
    harness.api.writes.clear()
    assert await harness.reconcile() == 30
    assert harness.api.get(DEPLOYMENT, NAME) == before
    assert harness.conditions()["Accepted"] == ("False", "Refused")
    assert harness.conditions()["Ready"] == ("True", "LastGoodRevision")
    assert len(refusals(harness)) == 2  # applied, overwritten, and no third time
    assert "DELETE" not in [write[0] for write in harness.api.writes if "deploy" in write[1]]


async def test_a_deployment_with_another_selector_is_recreated(harness):
    recreate(harness.api, DEPLOYMENT, another_selector)
    former = harness.api.get(DEPLOYMENT, NAME)["metadata"]["uid"]
    await harness.until_done()
    assert harness.api.get(DEPLOYMENT, NAME)["metadata"]["uid"] != former
    labels = spec(harness, DEPLOYMENT)["selector"]["matchLabels"]
    assert labels["app.kubernetes.io/instance"] == "coordinator"


async def test_a_deployment_is_not_deleted_if_it_could_not_be_recreated(harness):
    recreate(harness.api, DEPLOYMENT, another_selector)
    former = harness.api.get(DEPLOYMENT, NAME)["metadata"]["uid"]
    harness.api.put(AGENT, with_a_port_twice())
    assert await harness.reconcile() == 30
    assert harness.api.get(DEPLOYMENT, NAME)["metadata"]["uid"] == former
    assert harness.conditions()["Accepted"] == ("False", "Refused")
