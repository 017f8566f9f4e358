"""Agents, Services and Secrets come in any order, go, and come back."""

from harness.kubectl import eventually
from harness.objects import agent, call, delegations, secret
from harness.space import Space

ASKS_WRITER = [delegations(writer="A slogan"), "{}", "It is back."]


def test_a_coordinator_may_come_before_its_worker(space: Space):
    space.kubectl.apply(agent("coordinator", ASKS_WRITER, agents=[{"name": "writer"}]))
    refs = space.kubectl.wait_for_condition("coordinator", "ResolvedRefs", "False")
    assert "writer" in refs["message"]
    space.kubectl.wait_until_ready("coordinator")  # it runs without

    space.serve(agent("writer", ["{}", "Two wheels."]))
    space.kubectl.wait_for_condition("coordinator", "ResolvedRefs", "True")
    eventually(lambda: _delegated(space), seconds=60, what="the delegation works")


def test_a_worker_that_is_deleted_and_comes_back_is_found_again(space: Space):
    writer = agent("writer", ["{}", "Two wheels."])
    space.serve(writer, agent("coordinator", ASKS_WRITER, agents=[{"name": "writer"}]))
    assert _delegated(space)
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
    space.kubectl.apply(
        agent(
            "keyed",
            None,
            model={
                "name": "stub",
                "endpoint": "http://model:8000/v1",
                "apiKey": {"secretKeyRef": {"name": "models", "key": "api-key"}},
            },
        )
    )
    degraded = space.kubectl.wait_for_condition("keyed", "Degraded", "True", seconds=120)
    assert "models" in degraded["message"]
    assert "api-key" in degraded["message"]
    space.kubectl.apply(secret("models", api_key="late"))
    eventually(
        lambda: space.probe.ask("keyed").text.find("The key is late.") > 0,
        seconds=150,  # the kubelet looks after mounted Secrets about once a minute
        what="the key is used",
    )
    space.kubectl.wait_for_condition("keyed", "Degraded", "False", seconds=120)


def _delegated(space: Space) -> bool:
    answer = space.probe.ask("coordinator")
    session = (answer.headers or {}).get("x-session-id")
    return "delegation_response" in space.probe.event_types("coordinator", session)
