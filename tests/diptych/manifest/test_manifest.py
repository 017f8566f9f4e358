"""What a manifest may say, and what it may not say yet."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION, AgentManifest
from diptych.manifest.documents import SourceLocation
from diptych.manifest.validation import _all_paths, validate_manifest

FULL = Path(__file__).parent / "full_manifest.yaml"
MODEL = {"name": "gpt-5-mini", "endpoint": "https://models.example.com/v1"}


def manifest(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Agent",
        "metadata": {"name": "coordinator"},
        "spec": {"model": MODEL, **spec},
    }


def problems_of(content: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate_manifest(content, SourceLocation("agent.yaml"))
    return [line.removeprefix("agent.yaml: ") for line in caught.value.problems]


def test_every_supported_field_is_taken() -> None:
    spec = validate_manifest(yaml.safe_load(FULL.read_text()), SourceLocation(FULL.name)).spec
    assert spec.model is not None
    assert spec.model.parameters.temperature == 0.2
    times = spec.model.timeouts
    assert (times.connect, times.first_byte, times.idle, times.total) == (5, 90, 0.5, 3600)
    assert spec.tools[0].overrides[0].timeout == 300
    assert [peer.visible_name for peer in spec.agents] == ["researcher", "counsel", "outside"]
    assert spec.model.inputs == ("image", "audio", "file")
    assert spec.chat.allow_parameters == ("temperature", "max_tokens")
    assert spec.loop.deadline == 600
    assert spec.sessions.retention == 5400
    assert spec.replicas == 3
    assert spec.network is not None
    assert spec.network.extra_egress[0].to[0].ip_block is not None


def test_an_output_schema_is_kept_as_it_is_with_its_nulls() -> None:
    schema = {"type": "object", "properties": {"a": {"default": None, "enum": ["x", None]}}}
    content = manifest(outputSchema=schema, loop={"answerMode": "direct", "answerRepairs": 0})
    spec = validate_manifest(content, SourceLocation("agent.yaml")).spec
    assert spec.output_schema == schema
    assert (spec.loop.answer_mode, spec.loop.answer_repairs) == ("direct", 0)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "strin"}, "is not a valid JSON schema: 'strin' is not valid"),
        ({"$ref": "https://x.example/s"}, "refers to another document (https://x.example/s)"),
        ({"description": "x" * 70_000}, "is longer than 64 KiB"),
    ],
)
def test_an_output_schema_that_cannot_be_used_is_a_mistake(schema, problem) -> None:
    (line,) = problems_of(manifest(outputSchema=schema))
    assert line.startswith(f"spec.outputSchema: {problem}")


def test_what_kubernetes_adds_to_an_object_is_no_mistake() -> None:
    content = manifest() | {"status": {"conditions": []}}
    content["metadata"] |= {
        "labels": {"team": "blue"},
        "creationTimestamp": None,
        "uid": "1",
        "resourceVersion": "2",
    }
    assert validate_manifest(content, SourceLocation("agent.yaml")).metadata.name == "coordinator"


def test_all_mistakes_are_told_at_once() -> None:
    content = manifest(loop={"maxSteps": 0}, tools=[{"name": "a", "url": "b"}, {"name": "c"}])
    assert problems_of(content) == [
        'spec.tools[0].url: must start with http:// or https:// (got "b")',
        "spec.tools[1]: needs exactly one of url, serviceRef, command",
        "spec.loop.maxSteps: must be 1 or more (got 0)",
    ]


def test_a_flood_of_mistakes_is_cut() -> None:
    problems = problems_of(manifest(**{f"field{n}": 1 for n in range(200)}))
    assert len(problems) == 51
    assert problems[-1] == "… and 150 more problems like these"


KNOWN_FIELDS = sorted({path[-1] for path in _all_paths(AgentManifest, ())})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["Agent", "5s", ""])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KNOWN_FIELDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KNOWN_FIELDS), VALUES, max_size=4), VALUES)
def test_nothing_but_a_config_error_comes_of_nonsense(spec: dict[str, Any], whole: Any) -> None:
    for content in (manifest(**spec), {"spec": whole, "metadata": whole, "kind": whole}):
        problems = problems_or_none(content)
        assert all(line.startswith("agent.yaml: ") for line in problems[:50])
        assert "is not valid" not in "".join(problems)
        assert "\n" not in "".join(problems)


def problems_or_none(content: dict[str, Any]) -> tuple[str, ...]:
    try:
        validate_manifest(content, SourceLocation("agent.yaml"))
    except ConfigError as error:
        return error.problems
    return ()
