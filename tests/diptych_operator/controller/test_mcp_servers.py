"""MCPServers and the Agents that use them, at an API."""

import json

import pytest
from support.agents import agent_object, mcp_server, mcp_server_object
from support.reconciler_harness import NAME, served

from diptych_operator.controller.foreign_servers import PERIOD, ForeignServers
from diptych_operator.desired.resolved_manifest import FILE
from diptych_operator.kubernetes.errors import ForbiddenError, NotFoundError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    AGENT,
    CONFIG_MAP,
    DEPLOYMENT,
    MCP_SERVER,
    NAMESPACE,
    NETWORK_POLICY,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    ObjectKey,
)

SERVER = ("tools", "calc")
KEY = ObjectKey(MCP_SERVER, *SERVER)
CHILD = ("tools", "calc-tools")
PYTHON = {"python": "def add(a: int, b: int) -> int:\n  return a + b\n"}
CHILDREN = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, DEPLOYMENT, CONFIG_MAP)
TOOLS = [{"name": "calc", "ref": {"name": "calc", "namespace": "tools"}}]


@pytest.fixture
async def harness():
    async with served() as found:
        yield found


def put(harness, **spec):
    spec = {"source": PYTHON, "allowedNamespaces": {"from": "All"}, **spec}
    return harness.api.put(MCP_SERVER, mcp_server_object(*reversed(SERVER), **spec))


def put_agent(harness, name="coordinator", namespace="team"):
    harness.api.put(AGENT, agent_object(name, namespace, tools=TOOLS))


def conditions(harness):
    status = harness.api.get(MCP_SERVER, SERVER)["status"]
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def manifest_tools(harness):
    """Give the tools in the manifest that the Agent's newest pods read."""
    sources = harness.api.get(DEPLOYMENT, NAME)["spec"]["template"]["spec"]["volumes"][0]
    name = sources["projected"]["sources"][0]["configMap"]["name"]
    text = harness.api.get(CONFIG_MAP, (NAME[0], name))["data"][FILE]
    return json.loads(text)["spec"]["tools"]


def ingress(harness):
    rules = harness.api.get(NETWORK_POLICY, CHILD)["spec"]["ingress"]
    found = [one["podSelector"]["matchLabels"] for rule in rules for one in rule["from"]]
    return [labels.get("app.kubernetes.io/instance") for labels in found]


async def test_an_agent_and_its_server_find_each_other_in_any_order(harness):
    put_agent(harness)
    await harness.until_done()
    assert harness.conditions()["ResolvedRefs"] == ("False", "MCPServerNotFound")
    assert manifest_tools(harness) == []
    put(harness)
    await harness.until_done()
    assert all(harness.api.get(kind, CHILD) for kind in CHILDREN)
    assert harness.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    url = "http://calc-tools.tools.svc:8000/mcp"
    assert manifest_tools(harness) == [{"name": "calc", "url": url}]
    assert ingress(harness) == [None, "coordinator"]  # the first is the operator
    [egress] = [
        rule
        for rule in harness.api.get(NETWORK_POLICY, NAME)["spec"]["egress"]
        if "diptych-tools" in json.dumps(rule)
    ]
    assert egress["ports"] == [{"protocol": "TCP", "port": 8000}]
    assert harness.api.get(MCP_SERVER, SERVER)["status"]["agents"] == 1
    harness.api.remove(MCP_SERVER, SERVER)
    await harness.until_done()
    assert harness.conditions()["ResolvedRefs"] == ("False", "MCPServerNotFound")


async def test_a_change_on_either_side_queues_the_other(harness):
    put_agent(harness)
    put(harness)
    await harness.until_done()
    agent = ObjectKey(AGENT, *NAME)
    assert agent in harness.cache.put(MCP_SERVER, put(harness, tools={"allow": ["add"]}))
    moved = harness.api.put(AGENT, agent_object(tools=[]))
    assert KEY in harness.cache.put(AGENT, moved)
    await harness.until_done()
    assert ingress(harness) == [None]


async def test_namespaces_that_it_chooses_come_and_go(harness):
    harness.api.put(NAMESPACE, {"metadata": {"name": "team", "labels": {"may": "yes"}}})
    put_agent(harness)
    selector = {"matchLabels": {"may": "yes"}}
    put(harness, allowedNamespaces={"from": "Selector", "selector": selector})
    await harness.until_done()
    assert ingress(harness) == [None, "coordinator"]
    content = {"metadata": {"name": "team", "labels": {}}}
    affected = harness.cache.put(NAMESPACE, harness.api.put(NAMESPACE, content))
    assert {KEY, ObjectKey(AGENT, *NAME)} <= affected
    await harness.until_done()
    assert ingress(harness) == [None]
    assert harness.conditions()["ResolvedRefs"] == ("False", "MCPServerNotAllowed")


async def test_a_server_that_moves_out_of_the_cluster_leaves_nothing_behind(harness):
    put(harness)
    await harness.until_done()
    put(harness, source={"command": ["mcp-server-time"]})
    await harness.until_done()
    assert [bool(harness.api.get(kind, CHILD)) for kind in CHILDREN] == [True] * 4 + [False]
    put(harness, source={"remote": {"url": "https://tools.example.com/mcp"}})
    await harness.until_done()
    assert not any(harness.api.get(kind, CHILD) for kind in CHILDREN)
    assert harness.api.get(MCP_SERVER, SERVER)["status"]["address"] == {
        "url": "https://tools.example.com/mcp"
    }


async def test_what_somebody_deletes_or_changes_is_mended(harness):
    put(harness)
    await harness.until_done()
    harness.api.remove(SERVICE, CHILD)
    harness.api.edit(CONFIG_MAP, CHILD, lambda c: c["data"].update({"tools.py": "evil"}))
    await harness.until_done()
    assert harness.api.get(SERVICE, CHILD)
    assert harness.api.get(CONFIG_MAP, CHILD)["data"] == {"tools.py": PYTHON["python"]}


async def test_what_the_server_says_is_in_its_status(harness):
    put(harness, tools={"pin": [{"tool": "add", "digest": "sha256:1"}]})
    await harness.until_done()
    harness.api.settle()
    labels = mcp_server().child_labels
    metadata = {"name": "calc-1", "namespace": "tools", "uid": "p", "labels": labels}
    harness.api.put(POD, {"metadata": metadata})
    ready = {"tools": [{"name": "add", "digest": "sha256:2"}], "serverInfo": None}
    harness.cache.answers[KEY] = {"calc-1": ready}
    await harness.until_done()
    assert conditions(harness) == {
        "Accepted": ("True", "Accepted"),
        "Available": ("True", "Available"),
        "Verified": ("True", "Verified"),
        "Ready": ("True", "Ready"),
        "ToolsDrifted": ("True", "ToolsChanged"),
    }


async def test_a_foreign_object_of_a_childs_name_is_left_alone(harness):
    service = {"metadata": {"name": "calc-tools", "namespace": "tools"}, "spec": {"ports": []}}
    harness.api.put(SERVICE, service)
    put(harness)
    await harness.until_done()
    assert conditions(harness)["Accepted"] == ("False", "NameConflict")
    assert harness.api.get(DEPLOYMENT, CHILD) is None


# Kinds of other groups

OTHER = {"apiGroup": "mcp.x-k8s.io", "kind": "MCPServer", "name": "search"}
FOUND = {"metadata": {}, "spec": {}, "status": {"url": "http://search.team:80/mcp"}}


class OtherApi:
    """The part of `KubernetesClient` that reads kinds of other groups."""

    def __init__(self, *, has_kind=True, answer=FOUND):
        self.has_kind, self.answer, self.reads = has_kind, answer, 0

    async def document(self, path):
        if not self.has_kind:
            raise NotFoundError("no", 404)
        if path == "/apis/mcp.x-k8s.io":
            return {"preferredVersion": {"version": "v1alpha1"}}
        assert path == "/apis/mcp.x-k8s.io/v1alpha1"
        status = {"name": "mcpservers/status", "kind": "MCPServer", "namespaced": True}
        return {"resources": [status, {**status, "name": "mcpservers"}]}

    async def find(self, kind, name):
        self.reads += 1
        assert (kind.plural, name) == ("mcpservers", ("team", "search"))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        (OtherApi(), None),
        (OtherApi(has_kind=False), "KindNotFound"),
        (OtherApi(answer=None), "MCPServerNotFound"),
        (OtherApi(answer=ForbiddenError("no", 403)), "KindNotReadable"),
    ],
)
async def test_another_groups_server_is_read_once_a_minute(harness, api, reason):
    now = 0.0
    servers = ForeignServers(api, harness.cache, lambda: now)
    content = agent_object(tools=[{"name": "search", "ref": OTHER}])
    agent = Agent.read(harness.api.put(AGENT, content))
    assert await servers.refresh(agent) == PERIOD
    [found] = harness.cache.foreign_servers.values()
    assert found == FOUND if reason is None else found.reason == reason
    before = api.reads
    await servers.refresh(agent)
    assert api.reads == before
    now = PERIOD
    await servers.refresh(agent)
    assert api.reads == 2 * before


async def test_an_agent_reaches_the_service_of_another_groups_server(harness):
    ports = [{"port": 80, "targetPort": 9000}]
    search = {"metadata": {"name": "search", "namespace": "team"}}
    harness.api.put(SERVICE, {**search, "spec": {"selector": {"app": "search"}, "ports": ports}})
    harness.reconciler._foreign_servers = ForeignServers(OtherApi(), harness.cache)
    harness.api.put(AGENT, agent_object(tools=[{"name": "search", "ref": OTHER}]))
    await harness.until_done()
    assert harness.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    assert manifest_tools(harness)[0]["url"] == "http://search.team:80/mcp"
    egress = harness.api.get(NETWORK_POLICY, NAME)["spec"]["egress"]
    assert {"app": "search"} in [
        peer.get("podSelector", {}).get("matchLabels") for rule in egress for peer in rule["to"]
    ]
