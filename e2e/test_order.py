"""Agents, Services and Secrets come in any order, go, and come back."""

from harness.kubectl import eventually
from harness.objects import agent, call, delegations, secret
from harness.space import Space

ASKS_WRITER = [delegations(writer="A slogan"), "{}", "It is back."]


def test_a_worker_may_come_late_go_and_come_back(space: Space):
    space.kubectl.apply(agent("coordinator", ASKS_WRITER, agents=[{"name": "writer"}]))
    refs = space.kubectl.wait_for_condition("coordinator", "ResolvedRefs", "False")
    assert "writer" in refs["message"]
    space.kubectl.wait_until_ready("coordinator")  # it runs without

    writer = agent("writer", ["{}", "Two wheels."])
    space.serve(writer)
    space.kubectl.wait_for_condition("coordinator", "ResolvedRefs", "True")
    eventually(lambda: _delegated(space), seconds=60, what="the delegation works")

    space.kubectl.delete("agents.diptych.dev", "writer")
    space.kubectl.wait_for_condition("coordinator", "ResolvedRefs", "False")
    space.serve(writer)
    space.kubectl.wait_for_condition("coordinator", "ResolvedRefs", "True")
    eventually(lambda: _delegated(space), seconds=60, what="the delegation works again")


def test_a_tool_server_may_come_last(space: Space):
    script = [call("echo", text="hi"), "{}", "Done."]
    tools = [{"name": "tools", "serviceRef": {"name": "tools"}}]
    space.kubectl.apply(agent("echo", script, tools=tools))
    refs = space.kubectl.wait_for_condition("echo", "ResolvedRefs", "False")
    assert "tools" in refs["message"]
    space.kubectl.wait_until_ready("echo")

    space.serve_tools()
    space.kubectl.wait_for_condition("echo", "ResolvedRefs", "True")

    def called() -> bool:
        space.probe.ask("echo")
        return "tool_result" in space.probe.event_types("echo")

    eventually(called, seconds=90, what="the tool is called")


def test_a_secret_may_come_last(space: Space):
    space.serve_model()
    reference = {"secretKeyRef": {"name": "models", "key": "api-key"}}
    model = {"name": "stub", "endpoint": "http://model:8000/v1", "apiKey": reference}
    reader = {"to": [{"serviceAccount": {"name": "default"}}], "may": ["ask", "read"]}
    space.serve(
        agent("keyed", None, model=model, access={"grants": [reader]})
    )  # it can take work, and says what it misses
    assert _missing(space) == ["api-key of Secret models"]
    degraded = space.kubectl.wait_for_condition("keyed", "Degraded", "True", reason="KeyMissing")
    assert "api-key of Secret models" in degraded["message"]

    space.kubectl.apply(secret("models", another_key="early"))
    space.look_after_mounts("keyed")
    space.kubectl.apply(secret("models", api_key="late"))
    space.look_after_mounts("keyed")
    eventually(
        lambda: "The key is late." in space.probe.ask("keyed").text,
        seconds=90,
        what="the key is used",
    )
    assert _missing(space) == []
    space.kubectl.wait_for_condition("keyed", "Degraded", "False")


def _delegated(space: Space) -> bool:
    answer = space.probe.ask("coordinator")
    session = (answer.headers or {}).get("x-session-id")
    return "delegation_response" in space.probe.event_types("coordinator", session)


def _missing(space: Space) -> list[str]:
    """Name what the pod of `keyed` misses, by its own account."""
    ready = space.probe.request("http://keyed:8000/ready")
    assert ready.status == 200
    return [missing["name"] for missing in ready.json["missing"] if missing["kind"] == "key"]
