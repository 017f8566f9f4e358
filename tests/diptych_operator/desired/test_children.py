"""The objects of an agent: owned, restricted, deterministic, named after it alone."""

import pytest
from support.agents import agent, child, children, observed, service, settled

from diptych_operator.desired.deployment import PodDefaults, ProxySettings, pod_template
from diptych_operator.desired.resolved_manifest import FILE
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    SERVICE_ACCOUNT,
)
from diptych_operator.resources.owner import ManifestError

KINDS = ["ConfigMap", "ServiceAccount", "NetworkPolicy", "Service", "Deployment"]


def pod(one, state=None):
    return child(one, DEPLOYMENT, state)["spec"]["template"]["spec"]


def container(one):
    return pod(one)["containers"][0]


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_budget_is_for_several_pods_only(replicas):
    assert [c["kind"] for c in children(agent(replicas=replicas)).to_apply] == KINDS
    assert child(agent(replicas=2), POD_DISRUPTION_BUDGET)["spec"]["maxUnavailable"] == 1


def test_the_pods_pass_pod_security_restricted():
    spec, security = pod(agent()), container(agent())["securityContext"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert child(agent(), SERVICE_ACCOUNT)["automountServiceAccountToken"] is False


def test_every_reference_is_an_optional_file():
    one = agent(
        model={
            "name": "m",
            "endpoint": "https://m.example.com",
            "apiKey": {"secretKeyRef": {"name": "models", "key": "api-key"}},
        },
        instructionsFrom={"configMapKeyRef": {"name": "prompts", "key": "p"}},
    )
    [config, access, prompts, models] = pod(one)["volumes"][0]["projected"]["sources"]
    assert config["configMap"]["items"] == [{"key": FILE, "path": FILE}]
    assert "optional" not in access["configMap"]
    assert prompts["configMap"]["optional"] is True
    assert models["secret"] == {
        "name": "models",
        "optional": True,
        "items": [{"key": "api-key", "path": "secrets/models/api-key"}],
    }


def test_the_users_variables_are_theirs():
    env = [
        {"name": "PUBLIC_URL", "value": "https://agents.example.com"},
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    one = agent(container={"env": env, "envFrom": [{"secretRef": {"name": "s"}}]})
    assert container(one)["env"] == [
        env[0],
        {"name": "SHUTDOWN_GRACE_SECONDS", "value": "60"},
        {"name": "METRICS_PORT", "value": "9090"},
        env[1],
    ]
    assert container(one)["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert len(pod(one)["volumes"][0]["projected"]["sources"]) == 2


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        pytest.param({"instructions": "New."}, True, id="instructions"),
        pytest.param({"container": {"image": "new"}}, True, id="the image"),
        pytest.param({"network": {"extraEgress": [{}]}}, False, id="the network"),
        pytest.param({"allowedNamespaces": {"from": "All"}}, False, id="who may delegate"),
        pytest.param({"replicas": 0}, False, id="scaling"),
    ],
)
def test_only_what_the_pods_are_made_of_rolls_them(change, rolls):
    before = child(agent(), DEPLOYMENT)["spec"]["template"]
    assert (child(agent(**change), DEPLOYMENT)["spec"]["template"] != before) is rolls


SESSIONS = {"redis": {"serviceRef": {"name": "redis"}}}


@pytest.mark.parametrize("replicas", [0, 2, 10])
def test_an_agent_that_shares_its_sessions_is_scaled_without_a_restart(replicas):
    one = child(agent(sessions=SESSIONS), DEPLOYMENT)["spec"]
    scaled = child(agent(sessions=SESSIONS, replicas=replicas), DEPLOYMENT)["spec"]
    assert scaled == one | {"replicas": replicas}


def test_a_peer_that_comes_and_goes_does_not_roll_the_pods():
    one = agent(
        agents=[{"name": "researcher"}], tools=[{"name": "t", "serviceRef": {"name": "wiki"}}]
    )
    there = observed(agent("researcher"), service("wiki"))
    assert child(one, DEPLOYMENT, there) == child(one, DEPLOYMENT)


def obsolete(one, state):
    return [live for _, live, _ in children(one, state).obsolete]


def test_config_maps_of_former_revisions_are_kept_until_their_pods_are_gone():
    changed, opened = agent(instructions="New."), agent(access={"mode": "open"})
    former = child(agent(), CONFIG_MAP)
    access = {"metadata": {"name": "coordinator-access"}}
    there = {"config_maps": [former, child(changed, CONFIG_MAP), access]}
    rolling = observed(deployment=settled(child(agent(), DEPLOYMENT)), **there)
    assert obsolete(changed, rolling) == []
    done = observed(deployment=settled(child(changed, DEPLOYMENT)), **there)
    assert obsolete(changed, done) == [former]
    done = observed(deployment=settled(child(opened, DEPLOYMENT)), config_maps=[access])
    assert obsolete(opened, done) == [access]


def running(name, revision, *, drains=False):
    labels = {"pod-template-hash": revision}
    metadata = {"name": name, "uid": name, "labels": labels}
    if drains:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": "Running"}}


def ports_out(one, state):
    rules = child(one, NETWORK_POLICY, state)["spec"]["egress"]
    return {port["port"] for rule in rules for port in rule["ports"]}


def test_pods_that_drain_keep_their_config_map_and_their_way_out():
    first = agent(tools=[{"name": "wiki", "url": "https://wiki.example.com:8443"}])
    changed = agent()
    there = {
        "deployment": settled(child(changed, DEPLOYMENT)),
        "network_policy": child(first, NETWORK_POLICY),
        "config_maps": [child(first, CONFIG_MAP)],
    }
    pods = (running("new", "b"), running("old", "a", drains=True))
    meanwhile = observed(**there, pods=pods)
    assert 8443 in ports_out(changed, meanwhile)
    assert obsolete(changed, meanwhile) == []
    over = observed(**there, pods=pods[:1])
    assert 8443 not in ports_out(changed, over)
    assert obsolete(changed, over) == [child(first, CONFIG_MAP)]


def test_overrides_of_selector_labels_are_rejected():
    label = "app.kubernetes.io/instance"
    one = agent(podTemplate={"metadata": {"labels": {label: "other"}}})
    with pytest.raises(ManifestError, match=f"labels must not change {label}"):
        child(one, DEPLOYMENT)


def test_a_manifest_too_large_for_a_config_map_is_rejected():
    limit = 512 * 1024
    room = limit - len(child(agent(instructions=""), CONFIG_MAP)["data"][FILE].encode())
    assert len(child(agent(instructions="x" * room), CONFIG_MAP)["data"][FILE]) == limit
    with pytest.raises(ManifestError) as caught:
        children(agent(instructions="é" * (room // 2 + 744 * 1024 + 1)))
    assert str(caught.value) == (
        "the manifest holds 2000 KiB, and 512 KiB is the most; "
        "move texts to ConfigMaps (instructionsFrom) or shorten them"
    )
    with pytest.raises(ManifestError):
        children(agent(instructions="x" * (room + 1)))


def test_the_platforms_proxy_is_a_variable_of_each_container_and_spares_the_cluster():
    one = agent(
        tools=[
            {"name": "calc", "url": "http://calculator:8000/mcp"},
            {"name": "wiki", "url": "http://wiki.docs:8000/mcp"},
            {"name": "web", "url": "https://example.com/mcp"},
        ],
        agents=[{"name": "lawyer", "namespace": "legal"}],
        sessions={"redis": {"serviceRef": {"name": "redis"}}},
    )
    proxy = ProxySettings("http://proxy.infra:3128", ("10.0.0.0/8",))
    pods = PodDefaults("image", proxy=proxy)
    variables = pod_template(one, "c", pods)["spec"]["containers"][0]["env"]
    by_name = {variable["name"]: variable["value"] for variable in variables}
    assert by_name["HTTP_PROXY"] == by_name["HTTPS_PROXY"] == "http://proxy.infra:3128"
    assert by_name["NO_PROXY"].split(",") == [
        *("localhost", "127.0.0.1", "::1", ".svc", ".cluster.local"),
        *("lawyer.legal", "redis.team", "calculator", "wiki.docs", "10.0.0.0/8"),
    ]


@pytest.mark.parametrize(("stdio", "memory"), [(0, "112Mi"), (2, "240Mi")])
def test_pods_request_what_was_measured_and_more_for_each_stdio_server(stdio, memory):
    tools = [{"name": f"t{n}", "command": ["tool"]} for n in range(stdio)]
    one = agent(tools=[*tools, {"name": "far", "url": "https://tools.example.com/mcp"}])
    (container,) = pod_template(one, "c", PodDefaults("image"))["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "10m", "memory": memory}
