"""One agent, from `kubectl apply` to its answer and its end."""

from harness.kubectl import eventually
from harness.objects import agent, config_map
from harness.space import Space

HELLO = ["{}", "Hello! How can I help you?"]


def test_an_agent_answers_after_kubectl_apply_alone(space: Space):
    space.serve(agent("hello", HELLO))
    answer = space.probe.ask("hello", session="s-1")
    assert answer.content == "Hello! How can I help you?"
    assert answer.headers["x-session-id"] == "s-1"
    assert space.probe.event_types("hello", "s-1") == ["user_message", "agent_response"]


def test_get_agents_shows_a_filled_row(space: Space):
    space.serve(
        agent("hello", HELLO, model={"name": "gpt-5-mini", "endpoint": "http://model:8000/v1"})
    )
    header, row = space.kubectl("get", "agents.diptych.dev", "-o", "wide").splitlines()
    wide = ["CHANGED", "ENDPOINT", "URL"]
    assert header.split() == ["NAME", "MODEL", "READY", "REASON", "REPLICAS", "AGE", *wide]
    name, model, ready, _, replicas, _, _, endpoint, url = row.split()
    assert (name, model, ready, replicas) == ("hello", "gpt-5-mini", "True", "1/1")
    assert endpoint == "http://model:8000/v1"
    assert url == f"http://hello.{space.name}:8000" or url.startswith(
        f"http://hello.{space.name}.svc"
    )


def test_short_name_and_category_list_agents(space: Space):
    space.kubectl.apply(agent("hello", HELLO))
    assert "hello" in space.kubectl("get", "dpa")
    assert "hello" in space.kubectl("get", "diptych")


def test_explain_documents_the_fields(space: Space):
    told = space.kubectl("explain", "agents.diptych.dev.spec.tools")
    assert "MCP server" in told
    assert "serviceRef" in told


def test_a_changed_manifest_is_taken_up(space: Space):
    space.serve(agent("hello", HELLO))
    space.serve(agent("hello", ["{}", "I have changed."]))
    # Nodes learn a moment after the API that the Service's pod is another one; until then the old
    # one, which ends 5 s later, answers: no question is lost.
    eventually(
        lambda: space.probe.ask("hello").content == "I have changed.",
        seconds=10,
        what="the new revision answers",
    )


def test_changed_instructions_of_a_config_map_are_taken_up_without_a_restart(space: Space):
    space.serve_model()
    space.kubectl.apply(config_map("prompts", careful="Be careful."))
    reference = {"configMapKeyRef": {"name": "prompts", "key": "careful"}}
    model = {"name": "stub", "endpoint": "http://model:8000/v1"}
    space.serve(agent("careful", None, model=model, instructionsFrom=reference))
    assert "Be careful." in _instructions(space)
    pods = space.pods()

    space.kubectl.apply(config_map("prompts", careful="Be bold."))
    space.look_after_mounts("careful")
    eventually(lambda: "Be bold." in _instructions(space), seconds=90, what="they are used")
    assert "Be careful." not in _instructions(space)
    assert space.pods() == pods


def test_a_deleted_agent_takes_all_that_was_made_for_it_along(space: Space):
    space.serve(agent("hello", HELLO))
    kinds = (
        "deployments,services,networkpolicies,serviceaccounts,configmaps,poddisruptionbudgets,pods"
    )

    def left():
        owned = space.kubectl.list(kinds, "app.kubernetes.io/managed-by=diptych-operator")
        return [f"{found['kind']}/{found['metadata']['name']}" for found in owned]

    assert len(left()) >= 5
    space.kubectl.delete("agents.diptych.dev", "hello")
    eventually(
        lambda: not left(), seconds=90, what="nothing is left", otherwise=lambda: str(left())
    )


def _instructions(space: Space) -> str:
    """Have the model tell what it was told before the question."""
    return space.probe.ask("careful", "What are your instructions?").content
