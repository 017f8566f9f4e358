"""Calls that wait for a person: three Agents down, and when the pod that asked is gone.

They wait for approval, or for the answer to a question of their tool.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.clusters import Cluster
from harness.kubectl import eventually
from harness.objects import agent, call, delegations
from harness.pods import crash, owner, ready_pods
from harness.probe import Answer
from harness.sharing import Run
from harness.space import Space
from harness.streams import Followed, following

BIN = Path(sys.executable).parent
REDIS = {"redis": {"serviceRef": {"name": "redis"}}}
TOOLS = [{"name": "till", "serviceRef": {"name": "tools", "port": 8000, "path": "/mcp"}}]
ASK = [{"match": {"tool": "echo"}, "do": "ask", "reason": "A person must see this."}]
PAY = [call("echo", text="5 coins"), "{}", "Paid."]
ASKS = {"to": [{"serviceAccount": {"name": "default"}}], "may": ["ask"]}
DECIDES = {"to": [{"serviceAccount": {"name": "lead"}}], "may": ["ask", "approve"]}
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
CALL = "call_1_1.call_1_1.call_1_1"


def passes(name: str) -> dict[str, Any]:
    """Grant an agent that asks this one to pass decisions on, too."""
    return {"to": [{"agent": {"name": name}}], "may": ["ask", "approve"]}


def counted(*texts: str) -> list[dict[str, Any]]:
    return [{"content": text, "usage": USAGE} for text in texts]


@pytest.fixture
def tree(space: Space) -> Iterator[Space]:
    """Three Agents, each with its pod; the call of the last one waits for approval."""
    space.kubectl("create", "serviceaccount", "lead")
    serve_tree(space, *PAY)
    return space


def serve_tree(space: Space, *leaf_replies: str) -> None:
    """Serve the tree, each Agent with its tools and peers."""
    space.serve_tools()
    leaf = counted(*leaf_replies)
    middle = counted(delegations(leaf="Pay."), "{}", "The leaf has paid.")
    top = counted(delegations(middle="See to it."), "{}", "It is done.")
    space.serve(
        agent("leaf", leaf, tools=TOOLS, policy=ASK, access={"grants": [passes("middle")]}),
        agent("middle", middle, agents=[{"name": "leaf"}], access={"grants": [passes("top")]}),
        agent("top", top, agents=[{"name": "middle"}], access={"grants": [ASKS, DECIDES]}),
    )
    wait_for_tree(space)


def wait_for_tree(space: Space) -> None:
    """Wait until each Agent has its peer, and the last one its tools."""
    for name in ("leaf", "middle", "top"):
        space.kubectl.wait_for_condition(name, "Degraded", "False")


def start(space: Space, name: str, account: str = "default", question: str = "Go.") -> str:
    run = post(space, name, "/v1/runs", {"input": question}, account)
    assert run.status == 202, run
    return str(run.json["id"])


def post(space: Space, name: str, path: str, body: Any, account: str = "default") -> Answer:
    return space.probe.request(
        f"http://{name}:8000{path}", body, headers=proof(space, name, account)
    )


def proof(space: Space, name: str, account: str) -> dict[str, str]:
    token = space.kubectl.token(f"diptych.dev/{space.name}/{name}", account)
    return {"authorization": f"Bearer {token}"}


def run_of(space: Space, name: str, run_id: str, account: str = "default") -> Any:
    url = f"http://{name}:8000/v1/runs/{run_id}"
    return space.probe.request(url, headers=proof(space, name, account)).json


def wait_until(space: Space, name: str, run_id: str, status: str, account: str = "default") -> Any:
    return eventually(
        lambda: (run := run_of(space, name, run_id, account))["status"] == status and run,
        seconds=60,
        what=f"the run of {name} is {status}",
        otherwise=lambda: json.dumps(run_of(space, name, run_id, account)),
    )


def diptych(space: Space, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line outside of the cluster, as a person does."""
    return subprocess.run(
        [str(BIN / "diptych"), *arguments, "--namespace", space.name],
        env={**os.environ, **space.kubectl.env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_call_three_levels_down_is_decided_at_the_top_by_the_command_line(tree: Space):
    run_id = start(tree, "top")
    run = wait_until(tree, "top", run_id, "input-required")
    (waiting,) = run["approvals"]
    assert (waiting["call_id"], waiting["agent"]) == (CALL, "middle")
    assert waiting["call"] == {"tool": "echo", "arguments": {"text": "5 coins"}}
    _who_began_a_run_does_not_decide(tree)

    listed = diptych(tree, "approvals", "top", "--as-service-account", "lead")
    assert CALL in listed.stdout, listed
    # As the Agent's own account, which has no right here, and as one that may ask and no more.
    decide = ("approve", run_id, CALL, "--at", "top")
    assert "404" in diptych(tree, *decide).stderr
    assert "'approve'" in diptych(tree, *decide, "--as-service-account", "default").stderr

    decide = (*decide, "--as-service-account", "lead")
    approved = diptych(tree, *decide)
    assert (approved.returncode, approved.stderr) == (0, f"{CALL}: approve\n")
    assert wait_until(tree, "top", run_id, "completed")["answer"] == "It is done."
    again = diptych(tree, *decide)
    assert again.returncode == 1, again
    assert "approve" in again.stderr, again

    leaf = tree.probe.request(
        "http://leaf:8000/memory/events",
        headers={"authorization": f"Bearer {tree.token_of_peer('middle', 'leaf')}"},
    )
    (decided,) = [e for e in leaf.json["events"] if e["event_type"] == "approval_decided"]
    assert decided["metadata"]["subject"] == f"serviceaccount:{tree.name}/lead"
    assert decided["metadata"]["caller"] == f"agent:{tree.name}/middle"
    _the_tree_is_read_over_all_three(tree, run_id)


def _the_tree_is_read_over_all_three(space: Space, run_id: str) -> None:
    url = f"http://top:8000/v1/runs/{run_id}/tree"
    node = space.probe.request(url, headers=proof(space, "top", "default")).json
    agents, calls = [node["agent"]], [node["tool_calls"]]
    assert node["children_usage"]["prompt_tokens"] == 60
    while node["delegations"]:
        (delegation,) = node["delegations"]
        assert "problem" not in delegation, delegation
        node = delegation["run"]
        assert node["status"] == "completed"
        agents.append(delegation["agent"])
        calls.append(node["tool_calls"])
    assert (agents, calls) == (["top", "middle", "leaf"], [0, 0, 1])

    shown = diptych(space, "events", "top", "--tree", run_id, "--as-service-account", "default")
    assert re.findall(r"(\w+)  completed", shown.stdout) == agents, shown
    assert "30 in, 6 out (with children 90 in, 18 out)" in shown.stdout


def _who_began_a_run_does_not_decide(space: Space) -> None:
    run_id = start(space, "top", "lead")
    wait_until(space, "top", run_id, "input-required", "lead")
    path = f"/v1/runs/{run_id}/approvals/{CALL}"
    own = post(space, "top", path, {"decision": "approve"}, "lead")
    assert own.status == 403, own
    assert run_of(space, "top", run_id, "lead")["status"] == "input-required"


def test_a_tool_three_levels_down_asks_the_person_at_the_top(space: Space):
    serve_tree(space, call("pay", coins=5), "{}", "Paid.")
    run_id = start(space, "top")
    wait_until(space, "top", run_id, "input-required")
    headers = proof(space, "top", "default")
    listed = space.probe.request("http://top:8000/v1/inputs", headers=headers).json["data"]
    assert [(each["call_id"], each["message"]) for each in listed] == [(CALL, "Who pays?")]
    path = f"/v1/runs/{run_id}/inputs/{CALL}"
    body = {"action": "accept", "content": {"name": "Ada"}}
    assert post(space, "top", path, body).status == 200
    wait_until(space, "top", run_id, "completed")
    assert post(space, "top", path, body).status == 409
    leaf = space.probe.request(
        "http://leaf:8000/memory/events",
        headers={"authorization": f"Bearer {space.token_of_peer('middle', 'leaf')}"},
    )
    (result,) = [e for e in leaf.json["events"] if e["event_type"] == "tool_result"]
    assert result["content"] == "Ada paid 5 coins"


@pytest.mark.long
def test_what_was_asked_for_on_a_pod_that_is_gone_is_decided_on_another(
    space: Space, cluster: Cluster, run: Run
):
    run.once("redis", lambda: cluster.load("redis:7"))
    space.serve_redis()
    space.serve_tools()
    space.kubectl("create", "serviceaccount", "lead")
    access = {"grants": [ASKS, DECIDES]}
    payer = agent("payer", PAY, tools=TOOLS, policy=ASK, access=access, sessions=REDIS, replicas=2)
    space.serve(payer)
    space.kubectl.wait_for_condition("payer", "Degraded", "False")
    ready_pods(space, 2)
    run_id = start(space, "payer")
    with following(space, "payer", run_id) as reader:
        wait_until(space, "payer", run_id, "input-required")
        crash(space, gone := owner(space, "payer", seconds=10))
        began = time.monotonic()
        other = owner(space, "payer", seconds=95)  # a killed process: 20; one with its grace: 65
        assert other["metadata"]["name"] != gone["metadata"]["name"]
        gone_after = time.monotonic() - began
        url = f"http://{other['status']['podIP']}:8000/v1/runs/{run_id}/approvals/call_1_1"
        body, headers = {"decision": "approve"}, proof(space, "payer", "lead")
        decided = space.probe.request(url, body, headers=headers, agent="payer")
        assert decided.status == 200, decided
        assert time.monotonic() - began - gone_after < 20
        got = Followed(**reader.ended())
    assert got.ids == list(range(1, len(got.ids) + 1))
    assert got.text == "Paid."
    assert got.types.count("approval_requested") == got.types.count("approval_decided") == 1
    assert got.types.count("owner_changed") == got.types.count("tool_result") == 1
    assert got.types[-1] == "completed"
    again = space.probe.request(url, body, headers=headers, agent="payer")
    assert again.status == 409, again
