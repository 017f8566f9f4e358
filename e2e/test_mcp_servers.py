"""MCPServers: hosted from Python code, a command and an image; used, refused, drifted, mended."""

from typing import Any

import pytest
from harness.kubectl import eventually
from harness.objects import agent, call
from harness.space import Space

PYTHON = '''
def echo(text: str) -> str:
    """Say a text again."""
    return text
'''
SCRIPT = [call("echo", text="hello"), "{}", "The echo returned: hello"]
MCP_SERVERS = "mcpservers.diptych.dev"


def server(name: str, source: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "MCPServer",
        "metadata": {"name": name},
        "spec": {"source": source, **spec},
    }


def user(name: str, of: str, **ref: str) -> dict[str, Any]:
    """Make an Agent that calls `echo` of a server."""
    return agent(name, SCRIPT, tools=[{"name": "tools", "ref": {"name": of, **ref}}])


def condition(space: Space, name: str, kind: str) -> dict[str, Any]:
    status = space.kubectl.get(MCP_SERVERS, name).get("status", {})
    return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})


def wait_for(space: Space, name: str, kind: str, status: str, reason: str) -> dict[str, Any]:
    """Wait for a condition of an MCPServer, and give it."""

    def found() -> dict[str, Any] | None:
        one = condition(space, name, kind)
        return one if (one.get("status"), one.get("reason")) == (status, reason) else None

    story = (MCP_SERVERS, name, "-o", "yaml")
    what = f"MCPServer {name}: {kind}={status} {reason}"
    made: dict[str, Any] = eventually(
        found, seconds=120, what=what, otherwise=lambda: space.kubectl("get", *story)
    )
    return made


def answers(space: Space, name: str) -> bool:
    return space.probe.ask(name, session="s").content == "The echo returned: hello"


@pytest.mark.long
def test_an_agent_uses_tools_that_are_python_code_in_a_manifest(space: Space):
    space.kubectl.apply(server("calc", {"python": PYTHON}), user("echo", "calc"))
    wait_for(space, "calc", "Ready", "True", "Ready")
    space.kubectl.wait_until_ready("echo")
    assert answers(space, "echo")
    assert "tool_result" in space.probe.event_types("echo", "s")
    status = space.kubectl.get(MCP_SERVERS, "calc")["status"]
    assert [tool["name"] for tool in status["tools"]] == ["echo"]
    assert (status["toolCount"], status["agents"]) == (1, 1)
    assert status["address"]["url"] == f"http://calc-tools.{space.name}.svc:8000/mcp"
    assert not space.probe.reaches("calc-tools")  # only the Agents that use it do

    space.kubectl.apply(server("calc", {"python": "def echo(text: str) -> str:\n  return = 1"}))
    said = wait_for(space, "calc", "Ready", "False", "HandshakeFailed")
    assert "line 2, column 10" in said["message"]
    assert answers(space, "echo")  # by the pod of the former code

    space.kubectl.apply(server("calc", {"python": PYTHON + "\ndef add(a: int) -> int: ...\n"}))
    wait_for(space, "calc", "Ready", "True", "Ready")
    eventually(
        lambda: space.kubectl.get(MCP_SERVERS, "calc")["status"]["toolCount"] == 2,
        seconds=60,
        what="the new tool is in the status",
    )


def test_a_command_and_an_image_serve_as_well(space: Space):
    command = ["diptych", "demo-tools"]
    # Any image whose server speaks streamable HTTP; ours bridges one here.
    arguments = ["diptych", "mcp-server", "--host", "::", "--", *command]
    space.kubectl.apply(
        server("command", {"command": command}),
        server(
            "image",
            {"containerImage": {"ref": space.image}},
            config={"arguments": arguments},
            runtime={"podTemplate": {"spec": {"containers": [_LOCAL]}}},
        ),
    )
    for name in ("command", "image"):
        wait_for(space, name, "Ready", "True", "Ready")
        space.serve(user(f"uses-{name}", name))
        assert answers(space, f"uses-{name}")
        tools = space.kubectl.get(MCP_SERVERS, name)["status"]["tools"]
        assert "echo" in [tool["name"] for tool in tools]
    shown = [space.kubectl.get(MCP_SERVERS, name)["status"] for name in ("command", "image")]
    assert shown[0]["tools"] == shown[1]["tools"]  # by /ready and by MCP's handshake
    assert "calculate" in space.kubectl("get", MCP_SERVERS, "-o", "yaml")


_LOCAL = {"name": "server", "imagePullPolicy": "IfNotPresent"}


@pytest.mark.long
def test_who_may_not_use_it_is_told_and_a_changed_tool_is_named(space: Space, other_space: Space):
    other_space.kubectl.apply(server("calc", {"python": PYTHON}))
    wait_for(other_space, "calc", "Ready", "True", "Ready")
    space.kubectl.apply(user("echo", "calc", namespace=other_space.name))
    space.kubectl.wait_for_condition("echo", "ResolvedRefs", "False", reason="MCPServerNotAllowed")
    pin = [{"tool": "echo", "digest": f"sha256:{'0' * 64}"}]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": space.name}}
    allowed = {"from": "Selector", "selector": selector}
    drifted = server("calc", {"python": PYTHON}, allowedNamespaces=allowed, tools={"pin": pin})
    other_space.kubectl.apply(drifted)
    wait_for(other_space, "calc", "ToolsDrifted", "True", "ToolsChanged")
    space.kubectl.wait_for_condition("echo", "ToolsDrifted", "True", reason="ToolsChanged")
    [tool] = other_space.kubectl.get(MCP_SERVERS, "calc")["status"]["tools"]
    drifted["spec"]["tools"] = {"pin": [{"tool": tool["name"], "digest": tool["digest"]}]}
    other_space.kubectl.apply(drifted)
    wait_for(other_space, "calc", "ToolsDrifted", "False", "AsPinned")
    space.kubectl.wait_for_condition("echo", "ToolsDrifted", "False", reason="AsPinned")
    assert answers(space, "echo")

    other_space.kubectl.delete(MCP_SERVERS, "calc")
    space.kubectl.wait_for_condition("echo", "ResolvedRefs", "False", reason="MCPServerNotFound")
    eventually(
        lambda: not other_space.kubectl.list("deployments"), seconds=60, what="its pods go with it"
    )
