"""What the API refuses, and in which words: a person reads them in their terminal."""

import pytest
from harness.objects import agent
from harness.space import Space

HELLO = ["{}", "Hello!"]
MODEL = {"name": "m", "endpoint": "http://model:8000/v1"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param({"toolz": []}, "toolz", id="an unknown field"),
        pytest.param(
            {"replicas": 3}, "need sessions.redis", id="replicas without a place for sessions"
        ),
        pytest.param(
            {
                "instructions": "a",
                "instructionsFrom": {"configMapKeyRef": {"name": "n", "key": "k"}},
            },
            "only one of instructions, instructionsFrom",
            id="instructions twice",
        ),
        pytest.param(
            {"tools": [{"name": "t", "url": "http://t/mcp", "serviceRef": {"name": "t"}}]},
            "exactly one of url, serviceRef, command",
            id="a tool server at two places",
        ),
        pytest.param({"tools": [{"name": "t"}]}, "exactly one of", id="a tool server nowhere"),
        pytest.param(
            {"tools": [{"name": "t", "url": "http://a"}, {"name": "t", "url": "http://b"}]},
            "Duplicate value",
            id="two tool servers of one name",
        ),
        pytest.param(
            {"agents": [{"url": "http://a"}]}, '"as"', id="an agent by URL without a name"
        ),
        pytest.param({"loop": {"maxSteps": 0}}, "maxSteps", id="no step at all"),
        pytest.param(
            {"loop": {"deadline": "soon"}}, "duration", id="a deadline that is no duration"
        ),
        pytest.param(
            {"model": {**MODEL, "parameters": {"temperature": "warm"}}},
            "decimal",
            id="a temperature that is no number",
        ),
        pytest.param({"model": {**MODEL, "apiKey": "sk-123"}}, "apiKey", id="a key as a value"),
        pytest.param(
            {"model": {**MODEL, "endpoint": "ftp://x"}}, "URL", id="an endpoint that is none"
        ),
        pytest.param({"instructions": "x" * 300_000}, "Too long", id="300 KB of instructions"),
    ],
)
def test_a_wrong_manifest_is_refused_in_words(space: Space, spec: dict, said: str):
    refusal = space.kubectl.refusal(agent("wrong", HELLO, **spec))
    assert said in refusal
    assert not space.kubectl.find("agents.diptych.dev", "wrong")


def test_an_agent_without_model_and_script_is_refused(space: Space):
    refusal = space.kubectl.refusal(agent("wrong", None))
    assert "model is required, unless DEBUG_MOCK_RESPONSES is set" in refusal


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("0-begins-with-a-digit", id="a digit first"),
        pytest.param("has.dots", id="dots"),
        pytest.param("a" * 64, id="64 characters"),
    ],
)
def test_a_name_that_a_service_cannot_have_is_refused(space: Space, name: str):
    assert "name" in space.kubectl.refusal(agent(name, HELLO))


def test_a_name_of_63_characters_works(space: Space):
    name = "a" * 63
    space.serve(agent(name, HELLO))
    assert space.probe.ask(name).content == "Hello!"
