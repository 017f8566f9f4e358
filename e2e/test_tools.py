"""An agent that calls tools of a real MCP server in the cluster, through its Service."""

import pytest
from harness.clusters import Cluster
from harness.objects import agent, call
from harness.space import Space
from harness.versions import built_image

SCRIPT = [call("echo", text="hello"), "{}", "The echo returned: hello"]


def test_tools_behind_a_service_behind_a_url_and_over_stdio_are_called(space: Space):
    space.serve_tools()
    places = {
        "service": {"serviceRef": {"name": "tools"}},
        "url": {"url": f"http://tools.{space.name}.svc:8000/mcp"},
        "stdio": {"command": ["diptych", "demo-tools"]},  # inside of the pod
    }
    space.serve(*(agent(name, SCRIPT, tools=[{"name": "t", **at}]) for name, at in places.items()))
    for name in places:
        assert space.probe.ask(name, session="s").content == "The echo returned: hello"
        events = space.probe.events(name, "s")
        types = [event["event_type"] for event in events]
        assert types == ["user_message", "tool_call", "tool_result", "agent_response"], name
        assert events[2]["content"] == "hello"


@pytest.mark.nightly
def test_a_stdio_tool_in_an_image_from_ours(cluster: Cluster, space: Space):
    """The recipe of docs/tools.md."""
    if cluster.kind is None:
        pytest.skip("this cluster is not kind's: an image that is built here cannot be loaded")
    made = f"FROM {space.image}\nRUN pip install mcp-server-time==2026.10.19\n"
    image = built_image(cluster, f"diptych-time:{space.image.rpartition('-')[2]}", made)
    script = [call("get_current_time", timezone="UTC"), "{}", "It is late."]
    for name, command in (("program", ["mcp-server-time"]), ("module", _MODULE)):
        one = agent(name, script, tools=[{"name": "time", "command": command}])
        one["spec"]["container"]["image"] = image
        space.serve(one)
        assert space.probe.ask(name, session="s").content == "It is late."
        assert "tool_result" in space.probe.event_types(name, "s")
    lacking = agent("lacking", script, tools=[{"name": "time", "command": ["mcp-server-time"]}])
    space.kubectl.apply(lacking)
    space.kubectl.wait_for_condition("lacking", "Degraded", "True", reason="ProgramMissing")


_MODULE = ["python", "-m", "mcp_server_time"]
