"""Routes of Agents at an API: made, mended, removed; where the cluster lacks their kind, missed."""

from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent_object
from support.kubernetes import ErrorResponse
from support.reconciler_harness import NAME, Harness, served

from diptych_operator.controller.obstacles import BLOCKED_SECONDS
from diptych_operator.desired.expose import ExposeSettings, WaySettings
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, HTTP_ROUTE, INGRESS, NETWORK_POLICY

GATEWAYS = {"namespaceSelector": {"matchLabels": {"team": "gateways"}}}
ON = WaySettings(True, (GATEWAYS,))
EXPOSING = replace(PLATFORM, expose=ExposeSettings(("*.example.com",), ON, ON))
BY_GATEWAY = {"host": "a.example.com", "gateway": {"name": "public"}, "tls": {}}
BY_INGRESS = {"host": "a.example.com", "ingress": {}}


@pytest.fixture
async def harness():
    async with served() as first:
        yield Harness(first.api, first.client, platform=EXPOSING)


def put(harness, **spec):
    return harness.api.put(AGENT, agent_object(**spec))


async def test_a_route_is_made_changed_and_removed_with_the_manifest(harness):
    put(harness, expose=BY_GATEWAY)
    await harness.until_done()
    route = harness.api.get(HTTP_ROUTE, NAME)
    assert route["spec"]["hostnames"] == ["a.example.com"]
    assert harness.api.get(AGENT, NAME)["status"]["url"] == "https://a.example.com"
    put(harness, expose=BY_INGRESS)
    await harness.until_done()
    assert harness.api.all(HTTP_ROUTE) == []
    assert harness.api.get(INGRESS, NAME)["spec"]["rules"][0]["host"] == "a.example.com"
    put(harness)
    await harness.until_done()
    assert harness.api.all(INGRESS) == []
    assert harness.api.get(AGENT, NAME)["status"]["url"] == "http://coordinator.team:8000"


async def test_an_agent_made_anew_does_not_wait_for_a_list_that_lacks_the_former_route(harness):
    put(harness, expose=BY_GATEWAY)
    await harness.until_done()
    harness.api.remove(AGENT, NAME)
    content = agent_object(expose=BY_GATEWAY)
    content["metadata"]["uid"] = "coordinator-2"
    stale = dict(harness.cache.all(HTTP_ROUTE))
    harness.api.put(AGENT, content)
    await harness.observe()
    for route in stale.values():
        harness.cache.put(
            HTTP_ROUTE, {**route, "metadata": {**route["metadata"], "resourceVersion": "9999"}}
        )
    await harness.reconciler.reconcile(NAME)
    assert harness.api.get(HTTP_ROUTE, NAME)
    assert "Stalled" not in harness.conditions()


async def test_a_route_that_was_edited_or_deleted_is_put_back(harness):
    put(harness, expose=BY_GATEWAY)
    await harness.until_done()
    before = harness.api.get(HTTP_ROUTE, NAME)["spec"]
    harness.api.edit(HTTP_ROUTE, NAME, lambda one: one["spec"].update(hostnames=["evil.com"]))
    await harness.until_done()
    assert harness.api.get(HTTP_ROUTE, NAME)["spec"] == before
    harness.api.remove(HTTP_ROUTE, NAME)
    await harness.until_done()
    assert harness.api.get(HTTP_ROUTE, NAME)["spec"] == before


async def test_a_route_of_somebody_else_is_a_conflict_of_names(harness):
    spec = {"hostnames": ["other.example.com"]}
    metadata = {"name": "coordinator", "namespace": "team", "uid": "x"}
    harness.api.put(HTTP_ROUTE, {"metadata": metadata, "spec": spec})
    put(harness, expose=BY_GATEWAY)
    await harness.until_done()
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")
    assert "HTTPRoute called coordinator" in harness.message("Accepted")
    assert harness.api.get(HTTP_ROUTE, NAME)["spec"] == spec


async def test_a_cluster_without_the_gateway_api_says_so_and_the_pods_run(harness):
    def lack(request, content):
        if "gateway.networking.k8s.io" in request.path:
            raise ErrorResponse(404, "the server could not find the requested resource")

    harness.api.before = lack
    put(harness, expose=BY_GATEWAY)
    await harness.until_done()
    assert harness.conditions()["Progressing"] == ("False", "KindMissing")
    assert harness.conditions()["Stalled"] == ("True", "KindMissing")
    assert "install the Gateway API's CRDs" in harness.message("Progressing")
    assert harness.api.get(DEPLOYMENT, NAME)
    harness.api.before = lambda request, content: None
    await harness.until_done()
    assert harness.api.get(HTTP_ROUTE, NAME)
    assert "Stalled" not in harness.conditions()


async def test_of_two_agents_of_one_host_the_younger_is_refused_until_the_older_goes(harness):
    first = put(harness, expose=BY_INGRESS)
    second = agent_object("second", expose=BY_INGRESS)
    harness.api.put(AGENT, second)
    await harness.until_done()
    name = ("team", "second")
    assert first["metadata"]["creationTimestamp"]
    assert harness.conditions(name)["Accepted"] == ("False", "HostConflict")
    assert harness.conditions()["Accepted"] == ("True", "Accepted")
    assert await harness.reconcile(name) == BLOCKED_SECONDS  # no watch tells when the first goes
    harness.api.remove(AGENT, NAME)
    await harness.until_done()
    assert harness.conditions(name)["Accepted"] == ("True", "Accepted")


def admitted(harness):
    """Whom the Agent's NetworkPolicy admits at its port."""
    rules = harness.api.get(NETWORK_POLICY, NAME)["spec"]["ingress"]
    return [peer for rule in rules for peer in rule["from"]]


OFF = ExposeSettings(("*.example.com",))
OTHER_HOSTS = ExposeSettings(("*.example.org",), ON, ON)


@pytest.mark.parametrize("settings", [OFF, OTHER_HOSTS], ids=["off", "other hosts"])
@pytest.mark.parametrize(
    ("expose", "kind"), [(BY_GATEWAY, HTTP_ROUTE), (BY_INGRESS, INGRESS)], ids=["route", "ingress"]
)
async def test_what_the_platform_allows_no_more_is_closed_and_all_else_goes_on(
    harness, settings, expose, kind
):
    put(harness, expose=expose)
    await harness.until_done()
    deployment = harness.api.get(DEPLOYMENT, NAME)
    egress = harness.api.get(NETWORK_POLICY, NAME)["spec"]["egress"]
    assert harness.api.get(kind, NAME)
    assert GATEWAYS in admitted(harness)

    later = Harness(harness.api, harness.client, platform=replace(PLATFORM, expose=settings))
    await later.until_done()
    assert harness.api.all(kind) == []
    assert GATEWAYS not in admitted(harness)
    assert harness.api.get(NETWORK_POLICY, NAME)["spec"]["egress"] == egress
    assert harness.api.get(DEPLOYMENT, NAME) == deployment
    assert later.conditions()["Accepted"] == ("False", "ExposeNotAllowed")
    status = harness.api.get(AGENT, NAME)["status"]
    assert status["url"] == "http://coordinator.team:8000"
    assert "is not reached from outside" in status["advice"]

    harness.api.writes.clear()
    await later.reconcile()
    assert harness.api.writes == []
    again = Harness(harness.api, harness.client, platform=EXPOSING)
    await again.until_done()
    assert harness.api.get(kind, NAME)
    assert GATEWAYS in admitted(harness)


FAULTS = {
    "MetadataNotAllowed": {"metadata": {"labels": {"theirs": "x"}}},
    "PolicyInvalid": {"policy": [{"match": {"tool": "*"}, "when": "1 +", "effect": "deny"}]},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_is_withdrawn_is_closed_whatever_else_the_manifest_is_refused_for(
    harness, fault
):
    put(harness, expose=BY_GATEWAY)
    await harness.until_done()
    put(harness, expose=BY_GATEWAY, **FAULTS[fault])
    await harness.until_done()
    assert harness.conditions()["Accepted"] == ("False", fault)
    assert harness.api.get(HTTP_ROUTE, NAME)

    later = Harness(harness.api, harness.client, platform=replace(PLATFORM, expose=OFF))
    await later.until_done()
    assert harness.api.all(HTTP_ROUTE) == []
    assert GATEWAYS not in admitted(harness)
    assert later.conditions()["Accepted"] == ("False", "ExposeNotAllowed")
