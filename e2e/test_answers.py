"""One agent, from `kubectl apply` to its answer and its end."""

from harness.kubectl import eventually
from harness.objects import agent, config_map
from harness.space import Space

HELLO = ["{}", "Hello! How can I help you?"]
NAME = "a" * 63
"""As long as a Service's may be."""


def test_an_agent_from_its_apply_to_its_end(space: Space):
    model = {"name": "gpt-5-mini", "endpoint": "http://model:8000/v1"}
    space.serve(agent(NAME, HELLO, model=model))
    answer = space.probe.ask(NAME, session="s-1")
    assert answer.content == "Hello! How can I help you?"
    assert answer.headers["x-session-id"] == "s-1"
    assert space.probe.event_types(NAME, "s-1") == ["user_message", "agent_response"]
    _kubectl_shows_it(space)

    space.serve(agent(NAME, ["{}", "I have changed."]))
    # Nodes learn a moment after the API that the Service's pod is another one; until then the old
    # one, which ends 5 s later, answers: no question is lost.
    eventually(
        lambda: space.probe.ask(NAME).content == "I have changed.",
        seconds=10,
        what="the new revision answers",
    )
    assert len(_made(space)) >= 5
    space.kubectl.delete("agents.diptych.dev", NAME)
    eventually(
        lambda: not _made(space),
        seconds=90,
        what="nothing is left",
        otherwise=lambda: str(_made(space)),
    )


def _kubectl_shows_it(space: Space) -> None:
    header, row = space.kubectl("get", "agents.diptych.dev", "-o", "wide").splitlines()
    wide = ["CHANGED", "ENDPOINT", "URL"]
    assert header.split() == ["NAME", "MODEL", "READY", "REASON", "REPLICAS", "AGE", *wide]
    name, model, ready, _, replicas, _, _, endpoint, url = row.split()
    assert (name, model, ready, replicas) == (NAME, "gpt-5-mini", "True", "1/1")
    assert endpoint == "http://model:8000/v1"
    assert url == f"http://{NAME}.{space.name}:8000" or url.startswith(
        f"http://{NAME}.{space.name}.svc"
    )
    for kind in ("dpa", "diptych"):  # the short name, and the category
        assert NAME in space.kubectl("get", kind)
    told = space.kubectl("explain", "agents.diptych.dev.spec.tools")
    assert "MCP server" in told
    assert "serviceRef" in told


def _made(space: Space) -> list[str]:
    """Name what the operator has made in a namespace."""
    kinds = (
        "deployments,services,networkpolicies,serviceaccounts,configmaps,poddisruptionbudgets,pods"
    )
    owned = space.kubectl.list(kinds, "app.kubernetes.io/managed-by=diptych-operator")
    return [f"{found['kind']}/{found['metadata']['name']}" for found in owned]


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


def _instructions(space: Space) -> str:
    """Have the model tell what it was told before the question."""
    return space.probe.ask("careful", "What are your instructions?").content
