"""An agent that calls tools of a real MCP server in the cluster, through its Service."""

from harness.objects import agent, call
from harness.space import Space

SCRIPT = [call("echo", text="hello"), "{}", "The echo returned: hello"]


def test_a_tool_behind_a_service_is_called(space: Space):
    space.serve_tools()
    space.serve(agent("echo", SCRIPT, tools=[{"name": "tools", "serviceRef": {"name": "tools"}}]))
    assert space.probe.ask("echo", session="s").content == "The echo returned: hello"
    events = space.probe.events("echo", "s")
    types = [event["event_type"] for event in events]
    assert types == ["user_message", "tool_call", "tool_result", "agent_response"]
    assert events[2]["content"] == "hello"


def test_a_tool_behind_an_in_cluster_url_is_called(space: Space):
    space.serve_tools()
    url = f"http://tools.{space.name}.svc:8000/mcp"
    space.serve(agent("echo", SCRIPT, tools=[{"name": "tools", "url": url}]))
    assert "tool_result" in _types_after_a_question(space)


def test_a_tool_server_over_stdio_runs_inside_the_pod(space: Space):
    command = ["diptych", "demo-tools"]
    space.serve(agent("echo", SCRIPT, tools=[{"name": "demo", "command": command}]))
    assert "tool_result" in _types_after_a_question(space)


def _types_after_a_question(space: Space) -> list[str]:
    assert space.probe.ask("echo", session="s").content == "The echo returned: hello"
    return space.probe.event_types("echo", "s")
