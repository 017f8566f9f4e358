"""How an Agent is reached from outside, and what the platform says of it."""

from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent, agent_object, observed

from diptych_operator.desired.children import desired_children
from diptych_operator.desired.expose import ExposeSettings, WaySettings, exposed_at_host
from diptych_operator.resources.owner import ManifestError

FROM = ({"namespaceSelector": {"matchLabels": {"team": "gateways"}}},)
SETTINGS = ExposeSettings(
    ("*.{namespace}.example.com", "fixed.example.com"),
    WaySettings(True, FROM),
    WaySettings(True),
)
HOST = "coordinator.team.example.com"
BY_GATEWAY = {
    "host": HOST,
    "gateway": {"name": "public", "namespace": "infra", "sectionName": "https"},
    "tls": {},
}
BY_INGRESS = {
    "host": HOST,
    "ingress": {"className": "nginx"},
    "tls": {"secretName": "certificate"},
}


def made(expose, settings=SETTINGS, **state):
    one = agent(**({"expose": expose} if expose else {}))
    found = desired_children(one, observed(**state), replace(PLATFORM, expose=settings))
    return {content["kind"]: content for content in found.to_apply}


def gateways(objects):
    rules = objects["NetworkPolicy"]["spec"]["ingress"]
    return [rule["ports"] for rule in rules if rule.get("from") == list(FROM)]


def test_a_gateway_gets_an_http_route_to_the_service():
    objects = made(BY_GATEWAY)
    route = objects["HTTPRoute"]
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert route["metadata"]["ownerReferences"] == objects["Service"]["metadata"]["ownerReferences"]
    [parent] = route["spec"]["parentRefs"]
    assert (parent["name"], parent["namespace"], parent["sectionName"]) == (
        "public",
        "infra",
        "https",
    )
    assert route["spec"]["hostnames"] == [HOST]
    [backend] = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"], backend["port"]) == ("Service", "coordinator", 8000)
    assert gateways(objects) == [[{"protocol": "TCP", "port": 8000}]]
    assert "Ingress" not in objects


def test_an_ingress_has_class_and_certificate():
    objects = made(BY_INGRESS)
    spec = objects["Ingress"]["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == [{"hosts": [HOST], "secretName": "certificate"}]
    [rule] = spec["rules"]
    assert rule["host"] == HOST
    assert rule["http"]["paths"][0]["backend"]["service"]["port"] == {"number": 8000}
    assert gateways(objects) == []
    assert "HTTPRoute" not in objects
    assert made({"host": HOST, "ingress": {}})["Ingress"]["spec"].keys() == {"rules"}


@pytest.mark.parametrize(
    ("settings", "expose", "reason", "said"),
    [
        (ExposeSettings(("*",)), BY_GATEWAY, "ExposeNotAllowed", "agents.expose.gateway.enabled"),
        (
            replace(SETTINGS, ingress=WaySettings()),
            BY_INGRESS,
            "ExposeNotAllowed",
            "expose.ingress",
        ),
        (replace(SETTINGS, hosts=()), BY_GATEWAY, "ExposeNotAllowed", "lets Agents take none"),
        *(
            (SETTINGS, {**BY_GATEWAY, "host": host}, "ExposeNotAllowed", f"{host} is not allowed")
            for host in (
                "coordinator.legal.example.com",
                "a.b.team.example.com",
                "team.example.com",
                "fixedxexample.com",
            )
        ),
    ],
)
def test_the_platform_says_how_and_under_which_names(settings, expose, reason, said):
    with pytest.raises(ManifestError) as error:
        made(expose, settings)
    assert error.value.reason == reason
    assert said in str(error.value)
    made({**BY_GATEWAY, "host": "fixed.example.com"})


def exposed(name, created, namespace="team", expose=BY_INGRESS):
    content = agent_object(name, namespace, expose=expose)
    content["metadata"]["creationTimestamp"] = created
    return content


def among(*agents, settings=SETTINGS):
    """Make the coordinator beside these Agents."""
    one = agent(expose=BY_INGRESS)
    return made(BY_INGRESS, settings, exposed_at_host=exposed_at_host(one, agents))


OWN = exposed("coordinator", "2026-02-01T00:00:00Z")


def test_a_host_that_an_older_agent_has_is_named():
    older = exposed("first", "2026-01-01T00:00:00Z")
    younger = exposed("last", "2026-03-01T00:00:00Z")
    with pytest.raises(ManifestError, match="is taken by Agent team/first") as error:
        among(OWN, younger, older)
    assert error.value.reason == "HostConflict"


@pytest.mark.parametrize(
    ("namespace", "expose"),
    [
        pytest.param("legal", BY_INGRESS, id="of a namespace that may not have the host"),
        pytest.param("team", BY_GATEWAY, id="in a way that is not switched on"),
    ],
)
def test_an_older_agent_that_may_not_have_the_host_is_in_nobodys_way(namespace, expose):
    older = exposed("first", "2026-01-01T00:00:00Z", namespace, expose)
    assert among(OWN, older, settings=replace(SETTINGS, gateway=WaySettings()))["Ingress"]


def test_peers_that_may_reach_all_agents_need_no_expose():
    network = replace(PLATFORM.network, ingress_from=FROM)
    found = desired_children(agent(), observed(), replace(PLATFORM, network=network))
    assert gateways({content["kind"]: content for content in found.to_apply})
