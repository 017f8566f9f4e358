"""What becomes of an Agent's references to tool servers."""

from dataclasses import replace

import pytest
from support.agents import agent, mcp_server

from diptych_operator.desired.references import ForeignRef, ObservedState, Unresolved
from diptych_operator.desired.tool_servers import (
    address_of,
    narrowed,
    unresolved_tool_servers,
    with_tool_servers,
)
from diptych_operator.resources.agent import KeyRef

SECRET_HEADER = {"name": "X-Key", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}}
REMOTE = {"remote": {"url": "https://tools.example.com/mcp", "headers": [SECRET_HEADER]}}
PIN = {"tool": "add", "digest": f"sha256:{'a' * 64}"}
OTHER_PIN = {"tool": "add", "digest": f"sha256:{'b' * 64}"}
FOREIGN = ForeignRef("mcp.x-k8s.io", "MCPServer", "tools", "search")


def referring(ref, **tool):
    return agent(tools=[{"name": "calc", "ref": {"name": "calc", **ref}, **tool}])


def resolved(given, *servers, **state):
    """Give the resolved tools, and the reasons for what is left out."""
    observed = ObservedState(
        mcp_servers={server.namespaced_name: server for server in servers}, **state
    )
    reasons = [one.reason for one in unresolved_tool_servers(given, observed)]
    return list(with_tool_servers(given, observed).tools), reasons


def test_a_hosted_server_is_its_service():
    url = "http://calc-tools.team.svc:8000/tools"
    server = mcp_server(config={"port": 9000, "path": "/tools"})
    assert resolved(referring({}), server) == ([{"name": "calc", "url": url}], [])


def test_a_remote_servers_headers_are_read_by_the_agents_pod():
    own = {"name": "x-team", "value": "blue"}
    given = referring({}, headers=[own])
    server = mcp_server(source=REMOTE)
    [tool], reasons = resolved(given, server)
    assert (tool["url"], tool["headers"], reasons) == (
        "https://tools.example.com/mcp",
        [SECRET_HEADER, own],
        [],
    )
    observed = ObservedState(mcp_servers={("team", "calc"): server})
    assert with_tool_servers(given, observed).key_refs == (KeyRef("Secret", "keys", "a"),)
    replaced = referring({}, headers=[{"name": "x-key", "value": "mine"}])
    assert resolved(replaced, server)[0][0]["headers"] == [{"name": "x-key", "value": "mine"}]


AUTH = {"clientId": "a", "clientSecret": {"secretKeyRef": {"name": "keys", "key": "b"}}}


def test_a_remote_servers_auth_is_its_agents_and_an_agents_own_comes_before_it():
    remote = {"url": "https://a.example", "auth": AUTH}
    server = mcp_server(source={"remote": remote})
    given = referring({})
    assert resolved(given, server)[0][0]["auth"] == AUTH
    observed = ObservedState(mcp_servers={("team", "calc"): server})
    assert with_tool_servers(given, observed).key_refs == (KeyRef("Secret", "keys", "b"),)
    own = {"as": "person"}
    assert resolved(referring({}, auth=own), server)[0][0]["auth"] == own


ALL = {"allowedNamespaces": {"from": "All"}}
BLUE = {"from": "Selector", "selector": {"matchLabels": {"team": "blue"}}}


@pytest.mark.parametrize(
    ("server", "state", "reason"),
    [
        (None, {}, "MCPServerNotFound"),
        (None, {"watched_namespaces": frozenset({"team"})}, "NamespaceNotWatched"),
        ({}, {}, "MCPServerNotAllowed"),
        ({"allowedNamespaces": {"from": "Same"}}, {}, "MCPServerNotAllowed"),
        (ALL, {}, None),
        ({"allowedNamespaces": BLUE}, {"namespace_labels": {"team": {"team": "blue"}}}, None),
        (
            {"allowedNamespaces": BLUE},
            {"namespace_labels": {"team": {"team": "red"}}},
            "MCPServerNotAllowed",
        ),
        (
            {"allowedNamespaces": BLUE},
            {"watched_namespaces": frozenset({"team", "tools"})},
            "NamespaceLabelsUnknown",
        ),
        ({**ALL, "source": REMOTE}, {}, "MCPServerNotAllowed"),
        (
            {**ALL, "source": {"remote": {"url": "https://a.example", "auth": AUTH}}},
            {},
            "MCPServerNotAllowed",
        ),
        ({**ALL, "source": {"remote": {"url": "https://a.example"}}}, {}, None),
    ],
)
def test_a_server_of_another_namespace_must_be_there_and_consent(server, state, reason):
    servers = () if server is None else (mcp_server(namespace="tools", **server),)
    tools, reasons = resolved(referring({"namespace": "tools"}), *servers, **state)
    assert reasons == ([reason] if reason else [])
    assert len(tools) == (reason is None)


@pytest.mark.parametrize(
    ("own", "offered", "kept"),
    [
        (["*"], ["*"], ["*"]),
        (["*"], ["add", "sub"], ["add", "sub"]),
        (["add", "pay"], ["*"], ["add", "pay"]),
        (["add", "pay"], ["add", "sub"], ["add"]),
        (["read_*"], ["read_mail", "send"], ["read_mail"]),
        (["read_m*"], ["read_*"], ["read_m*"]),
        (["read_*"], ["*_mail"], []),
        (["read_*"], ["read_?"], ["read_?"]),
        (["read_*"], ["read_[ab]"], ["read_[ab]"]),
        (["a?"], ["a*"], ["a?"]),
        (["a*"], ["a?"], ["a?"]),
    ],
)
def test_an_agent_narrows_and_never_widens(own, offered, kept):
    assert narrowed(own, offered) == kept
    server = mcp_server(tools={"allow": offered})
    tools, reasons = resolved(referring({}, allow=own), server)
    assert [tool.get("allow", ["*"]) for tool in tools] == ([kept] if kept else [])
    is_cut = kept == [] or (own, kept) == (["add", "pay"], ["add"])
    assert reasons == (["ToolsNotAllowed"] if is_cut else [])


def test_pins_of_both_hold_and_overrides_of_the_agent_come_first():
    server = mcp_server(tools={"pin": [PIN], "overrides": [{"tool": "*", "readOnly": True}]})
    own = {"tool": "sub", "digest": PIN["digest"]}
    given = referring({}, pin=[own], overrides=[{"tool": "sub", "readOnly": False}])
    [tool], reasons = resolved(given, server)
    assert (tool["pin"], reasons) == ([own, PIN], [])
    assert [one["tool"] for one in tool["overrides"]] == ["sub", "*"]
    [tool], reasons = resolved(referring({}, pin=[OTHER_PIN]), server)
    assert (tool["pin"], reasons) == ([PIN], ["PinsDiffer"])


def foreign_agent():
    return referring(
        {"name": "search", "namespace": "tools", "apiGroup": FOREIGN.group, "kind": FOREIGN.kind}
    )


def foreign_server(allowed="team", **content):
    annotations = {"diptych.dev/allowed-namespaces": allowed}
    return {"metadata": {"annotations": annotations}, **content}


@pytest.mark.parametrize(
    ("found", "url", "reason"),
    [
        (None, None, None),
        (Unresolved("KindNotFound", "no"), None, "KindNotFound"),
        (foreign_server(spec={"url": "http://a/mcp"}), "http://a/mcp", None),
        (foreign_server("*", status={"url": "http://b"}), "http://b", None),
        (foreign_server("red, blue", spec={"url": "http://a"}), None, "MCPServerNotAllowed"),
        (foreign_server(status={}), None, "NoAddress"),
    ],
)
def test_another_groups_server_is_its_address_if_it_consents(found, url, reason):
    state = {"foreign_servers": {FOREIGN: found} if found else {}}
    tools, reasons = resolved(foreign_agent(), **state)
    assert [tool["url"] for tool in tools] == ([url] if url else [])
    assert reasons == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ({"status": {"address": {"url": "http://a"}, "url": "http://b"}}, "http://a"),
        ({"status": {"url": "https://b"}, "spec": {"url": "http://c"}}, "https://b"),
        ({"spec": {"url": "file:///etc/passwd"}}, None),
        ({"spec": {"url": "http://user:pw@c"}}, None),
        ({"spec": {"url": "http://c:99999"}}, None),
        ({"spec": {"url": "http:///mcp"}}, None),
        ({"spec": {"url": 7}, "status": {"url": ""}}, None),
    ],
)
def test_an_address_is_an_http_url_in_one_of_three_places(content, url):
    assert address_of(content) == url


def test_without_references_nothing_is_made_anew():
    plain = replace(agent(), spec={"tools": [{"name": "a", "url": "http://a"}]})
    assert with_tool_servers(plain, ObservedState()) is plain
