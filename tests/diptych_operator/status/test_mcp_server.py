"""The conditions of an MCPServer: a table of what is seen, and what is said of it."""

import pytest
from support.agents import PLATFORM, mcp_server, settled

from diptych_operator.desired.mcp_server import server_children
from diptych_operator.status.condition import Problem
from diptych_operator.status.mcp_server import (
    Handshake,
    ServerInputs,
    handshake_of,
    mcp_server_status,
)

NOW = "2026-11-28T10:00:00Z"
DIGEST = f"sha256:{'a' * 64}"
ANSWER = Handshake({"add": DIGEST}, {"name": "calc", "version": "1"})
FAILURE = Handshake(reason="tools.py: line 1, column 5: invalid syntax")
REMOTE = {"source": {"remote": {"url": "https://tools.example.com/mcp"}}}
HEADER = {"name": "X-Key", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}}
SECRET = {"source": {"remote": {"url": "https://a.example/mcp", "headers": [HEADER]}}}
PINNED = {"tools": {"pin": [{"tool": "add", "digest": DIGEST}]}}
OTHER = {"tools": {"pin": [{"tool": "add", "digest": "x"}, {"tool": "sub", "digest": "x"}]}}


def deployment(server, available=None):
    found = server_children(server, (), PLATFORM)[-1]
    whole = settled(found)
    if available is not None:
        whole["status"] |= {"availableReplicas": available, "updatedReplicas": 0}
    return whole


def status(spec, available=None, *, has_pods=True, **inputs):
    server = mcp_server(**spec)
    if server.is_hosted:
        inputs["deployments"] = [deployment(server, available) if has_pods else None]
    return mcp_server_status(server, ServerInputs(**inputs), NOW)


def seen(given):
    return {c["type"]: f"{c['status']} {c['reason']}" for c in given["conditions"]}


def test_pods_that_the_cluster_refuses_are_a_standstill():
    server = mcp_server()
    live = deployment(server, 0)
    live["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": "q"}]
    found = seen(mcp_server_status(server, ServerInputs(deployments=[live]), NOW))
    assert found["Stalled"] == found["Ready"].replace("False", "True") == "True PodsRefused"
    assert "Reconciling" not in found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"spec": {}, "handshake": ANSWER},
            {"Available": "True Available", "Verified": "True Verified", "Ready": "True Ready"},
        ),
        (
            {"spec": {}, "has_pods": False},
            {
                "Available": "False NoPodAvailable",
                "Verified": "Unknown NotAsked",
                "Ready": "False RollingOut",
                "Reconciling": "True RollingOut",
            },
        ),
        (
            {"spec": {}, "available": 0, "handshake": FAILURE},
            {
                "Available": "False NoPodAvailable",
                "Verified": "False HandshakeFailed",
                "Ready": "False HandshakeFailed",
                "Reconciling": "True RollingOut",
            },
        ),
        (
            {"spec": {}, "available": 1, "handshake": FAILURE},
            {
                "Available": "True Available",
                "Verified": "False HandshakeFailed",
                "Ready": "False HandshakeFailed",
                "Reconciling": "True RollingOut",
            },
        ),
        (
            {"spec": {}, "handshake": ANSWER, "rejection": Problem("FieldLocked", "No.")},
            {
                "Accepted": "False FieldLocked",
                "Available": "True Available",
                "Verified": "True Verified",
                "Ready": "True LastGoodRevision",
                "Stalled": "True FieldLocked",
            },
        ),
        (
            {"spec": {}, "has_pods": False, "blocker": Problem("Denied", "No.")},
            {
                "Available": "False NoPodAvailable",
                "Verified": "Unknown NotAsked",
                "Ready": "False Denied",
                "Stalled": "True Denied",
            },
        ),
        (
            {"spec": {"runtime": {"replicas": 0}}},
            {
                "Available": "False ScaledToZero",
                "Verified": "Unknown NotAsked",
                "Ready": "True ScaledToZero",
            },
        ),
        (
            {"spec": REMOTE, "handshake": ANSWER},
            {"Available": "True Verified", "Verified": "True Verified", "Ready": "True Ready"},
        ),
        (
            {"spec": REMOTE, "handshake": FAILURE},
            {
                "Available": "False HandshakeFailed",
                "Verified": "False HandshakeFailed",
                "Ready": "False HandshakeFailed",
            },
        ),
        (
            {"spec": SECRET},
            {
                "Available": "Unknown NeedsSecret",
                "Verified": "Unknown NeedsSecret",
                "Ready": "True NotVerified",
            },
        ),
        (
            {"spec": PINNED, "handshake": ANSWER},
            {
                "Available": "True Available",
                "Verified": "True Verified",
                "Ready": "True Ready",
                "ToolsDrifted": "False AsPinned",
            },
        ),
        (
            {"spec": OTHER, "handshake": ANSWER},
            {
                "Available": "True Available",
                "Verified": "True Verified",
                "Ready": "True Ready",
                "ToolsDrifted": "True ToolsChanged",
            },
        ),
    ],
)
def test_conditions(given, expected):
    assert seen(status(**given)) == {"Accepted": "True Accepted", **expected}


def test_the_status_has_the_tools_and_what_the_server_says_of_itself():
    found = status({}, handshake=ANSWER, agents=2)
    assert found["tools"] == [{"name": "add", "digest": DIGEST}]
    assert found["serverInfo"] == {"name": "calc", "version": "1"}
    assert found["address"] == {"url": "http://calc-tools.team.svc:8000/mcp"}
    assert (found["toolCount"], found["agents"], found["pods"]) == (1, 2, "1/1")
    assert found["advice"] == "Serving. Nothing is wrong, and there is nothing to do."
    assert not {"tools", "serverInfo"} & status({}, handshake=FAILURE).keys()


def test_what_has_drifted_is_named_and_stays_known_while_the_server_is_silent():
    drifted = status(OTHER, handshake=ANSWER)
    message = next(c["message"] for c in drifted["conditions"] if c["type"] == "ToolsDrifted")
    assert message.startswith("Changed since pinned: add, sub (gone).")
    assert drifted["advice"].startswith("Serving, but: Changed since pinned")
    server = mcp_server(**OTHER)
    object.__setattr__(server, "status", drifted)
    after = mcp_server_status(server, ServerInputs(deployments=[deployment(server)]), NOW)
    assert seen(after)["ToolsDrifted"] == "True ToolsChanged"


def test_why_the_code_is_not_served_is_the_advice():
    assert "line 1, column 5" in status({}, available=0, handshake=FAILURE)["advice"]
    told = status({}, available=1, handshake=FAILURE)["advice"]
    assert told.endswith("invalid syntax. Pods that can take calls go on meanwhile.")


READY = {
    "status": "ready",
    "tools": [{"name": "add", "digest": DIGEST}],
    "serverInfo": {"name": "calc", "version": "1"},
}


def pod(name, second):
    return {"metadata": {"name": name, "creationTimestamp": f"2026-11-28T10:00:0{second}Z"}}


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (None, ANSWER),
        (READY, ANSWER),
        ({"status": "not ready", "reason": "is starting"}, None),
        ({"status": "not ready", "reason": FAILURE.reason}, FAILURE),
        (READY | {"serverInfo": None}, Handshake({"add": DIGEST}, {"name": "", "version": ""})),
        ({}, "does not answer"),
        ({"tools": [1]}, "does not answer"),
        ({"tools": [], "serverInfo": "x"}, "does not answer"),
    ],
)
def test_the_newest_pod_that_answers_decides(newest, expected):
    answers = {"old": READY} | ({} if newest is None else {"new": newest})
    found = handshake_of(answers, [pod("new", 2), pod("old", 1)])
    if isinstance(expected, str):
        assert expected in found.reason
    else:
        assert found == expected
