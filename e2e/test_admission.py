"""What the API refuses, and in which words: a person reads them in their terminal."""

from harness.objects import agent
from harness.space import Space

HELLO = ["{}", "Hello!"]
MODEL = {"name": "m", "endpoint": "http://model:8000/v1"}
TOOL = {"name": "t", "url": "http://t/mcp"}
TWICE = {"instructions": "a", "instructionsFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}}
WRONG = {
    "replicas-without-sessions": ({"replicas": 3}, "need sessions.redis"),
    "instructions-twice": (TWICE, "only one of instructions, instructionsFrom"),
    "tools-at-two-places": (
        {"tools": [{**TOOL, "serviceRef": {"name": "t"}}]},
        "exactly one of url, serviceRef, command",
    ),
    "tools-nowhere": ({"tools": [{"name": "t"}]}, "exactly one of"),
    "two-tools-of-one-name": ({"tools": [TOOL, TOOL]}, "Duplicate value"),
    "agent-by-url-without-name": ({"agents": [{"url": "http://a"}]}, '"as"'),
    "no-step": ({"loop": {"maxSteps": 0}}, "maxSteps"),
    "deadline": ({"loop": {"deadline": "soon"}}, "duration"),
    "temperature": ({"model": {**MODEL, "parameters": {"temperature": "warm"}}}, "decimal"),
    "endpoint": ({"model": {**MODEL, "endpoint": "ftp://x"}}, "URL"),
    "long-instructions": ({"instructions": "x" * 300_000}, "Too long"),
}
NAMES = ["0-begins-with-a-digit", "has.dots", "a" * 64]


def test_wrong_manifests_are_refused_in_words(space: Space):
    wrong = [agent(name, HELLO, **spec) for name, (spec, _) in WRONG.items()]
    refusals = _errors(space.kubectl.refusal(*wrong))
    for name, (_, said) in WRONG.items():
        (refusal,) = [one for one in refusals if f'"{name}"' in one]
        assert said in refusal
    # These are refused as a whole: their schema is wrong.
    assert "toolz" in space.kubectl.refusal(agent("wrong", HELLO, toolz=[]))
    keyed = agent("wrong", HELLO, model={**MODEL, "apiKey": "sk-123"})
    assert "apiKey" in space.kubectl.refusal(keyed)
    refusal = space.kubectl.refusal(agent("wrong", None))
    assert "model is required, unless DEBUG_MOCK_RESPONSES is set" in refusal
    for name in NAMES:
        assert "name" in space.kubectl.refusal(agent(name, HELLO))
    assert not space.kubectl.list("agents.diptych.dev")


def _errors(told: str) -> list[str]:
    """Split what kubectl says of a list that was refused: an error for each object."""
    return [f"Error{one}" for one in told.split("Error")[1:]]
