"""Fields of the pod template that the platform keeps for itself."""

import pytest
from support.agents import agent

from diptych_operator.desired.deployment import PodDefaults, pod_template
from diptych_operator.desired.locked_fields import locked_field
from diptych_operator.resources.owner import ManifestError

PLATFORM = {
    "metadata": {"labels": {"team": "agents"}},
    "spec": {
        "nodeSelector": {"pool": "agents"},
        "runtimeClassName": "gvisor",
        "tolerations": [{"key": "agents"}],
        "containers": [
            {
                "name": "agent",
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
                "resources": {"limits": {"memory": "1Gi"}},
            }
        ],
    },
}


def made(*locked, **spec):
    paths = tuple(map(locked_field, locked))
    defaults = PodDefaults("diptych:1", template=PLATFORM, locked=paths)
    return pod_template(agent(**spec), "config", defaults)


def container(template, name="agent"):
    return next(one for one in template["spec"]["containers"] if one["name"] == name)


def patch(**fields):
    return {"podTemplate": {"spec": fields}}


def of_agent(**fields):
    return patch(containers=[{"name": "agent", **fields}])


def test_what_the_platform_sets_lies_below_what_the_agent_says():
    own = {
        "env": [{"name": "HTTPS_PROXY", "value": "http://other"}, {"name": "A", "value": "1"}],
        "resources": {"limits": {"memory": "2Gi"}},
    }
    platforms = container(made())
    assert platforms["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert platforms["resources"] == {
        "requests": {"cpu": "10m", "memory": "112Mi"},
        "limits": {"memory": "1Gi"},
    }
    agents = container(made(container=own))
    assert agents["env"][-2:] == own["env"]
    assert agents["resources"] == own["resources"]
    overridden = made(**patch(nodeSelector={"pool": "gpu"}, runtimeClassName="kata"))
    assert overridden["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert overridden["spec"]["runtimeClassName"] == "kata"


def test_a_variable_has_one_source():
    reference = {"secretKeyRef": {"name": "proxy", "key": "url"}}
    variable = {"name": "HTTPS_PROXY", "valueFrom": reference}
    for own in ({"container": {"env": [variable]}}, of_agent(env=[variable])):
        assert container(made(**own))["env"][-1] == variable


def test_files_of_an_agent_come_after_those_of_the_platform():
    template = {"spec": {"containers": [{"name": "agent", "envFrom": [{"prefix": "A"}]}]}}
    one = agent(container={"envFrom": [{"prefix": "B"}]})
    found = pod_template(one, "config", PodDefaults("diptych:1", template=template))
    assert container(found)["envFrom"] == [{"prefix": "A"}, {"prefix": "B"}]


ENV = "spec.containers[agent].env[HTTPS_PROXY]"
BROKEN = [
    ("spec.nodeSelector", patch(nodeSelector={"x": "y"}), "spec.podTemplate.spec.nodeSelector"),
    (
        "spec.nodeSelector[pool]",
        patch(nodeSelector={"pool": "gpu"}),
        "spec.podTemplate.spec.nodeSelector[pool]",
    ),
    ("spec.runtimeClassName", patch(runtimeClassName="runc"), "spec.podTemplate.spec.runtimeClass"),
    ("spec.tolerations", patch(tolerations=[]), "spec.podTemplate.spec.tolerations"),
    ("spec.hostAliases", patch(hostAliases=[{"ip": "1.2.3.4"}]), "spec.podTemplate.spec.hostAl"),
    (ENV, of_agent(env=[{"name": "HTTPS_PROXY", "value": "x"}]), f"spec.podTemplate.{ENV}"),
    (
        ENV,
        {"container": {"env": [{"name": "HTTPS_PROXY", "value": "x"}]}},
        "spec.container.env[HTTPS_PROXY]",
    ),
    ("spec.containers[agent].image", {"container": {"image": "evil"}}, "spec.container.image"),
    (
        "spec.containers[*].securityContext",
        patch(containers=[{"name": "side", "securityContext": {"privileged": True}}]),
        "spec.podTemplate.spec.containers[side].securityContext",
    ),
    ("spec", {"container": {"image": "evil"}}, "spec.container"),
    (
        "metadata.labels[team]",
        {"metadata": {"labels": {"team": "x"}}},
        "spec.metadata.labels[team]",
    ),
    (
        "metadata.annotations[*.istio.io/*]",
        {"podTemplate": {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}}},
        "spec.podTemplate.metadata.annotations[sidecar.istio.io/inject]",
    ),
]


@pytest.mark.parametrize(("path", "spec", "field"), BROKEN)
def test_a_locked_field_that_an_agent_changes_is_named(path, spec, field):
    made(**spec)
    with pytest.raises(ManifestError) as error:
        made("spec.priority", path, **spec)
    assert error.value.reason == "FieldLocked"
    assert str(error.value).startswith(field)
    assert f"agents.locked has {path})" in str(error.value)


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        (ENV, {"container": {"env": [{"name": "OTHER", "value": "x"}]}}),
        (ENV, {"container": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}}),
        ("spec.nodeSelector[pool]", patch(nodeSelector={"disk": "ssd"})),
        ("spec.hostAliases", patch(hostAliases=[])),
        ("spec.containers[agent]", patch(containers=[{"name": "side", "image": "x"}])),
        ("metadata.labels", patch(priorityClassName="high")),
    ],
)
def test_what_is_not_changed_is_not_refused(path, spec):
    made(path, **spec)


def test_the_agents_own_references_are_no_change_of_the_volumes():
    secret = {
        "name": "m",
        "endpoint": "https://m",
        "apiKey": {"secretKeyRef": {"name": "a", "key": "b"}},
    }
    paths = tuple(map(locked_field, ("spec.volumes", "spec.containers[agent].args")))
    defaults = PodDefaults("diptych:1", locked=paths)
    pod_template(agent(model=secret, access={"mode": "open"}), "config", defaults)


@pytest.mark.parametrize(
    "path", ["", "nodeSelector", "spec..x", "spec.a[", "spec.a[]", "/spec", 'spec.a["b"']
)
def test_a_path_that_is_none_is_quoted(path):
    with pytest.raises(ValueError, match="is no path of a pod template") as error:
        locked_field(path)
    assert repr(path) in str(error.value)
