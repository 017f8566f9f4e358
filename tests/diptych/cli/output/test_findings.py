"""The sentences of an online check: each finding with its mark and its advice."""

from typing import Any

import pytest

from diptych.cli.output.findings import sentences
from diptych.cli.output.screen import Mark
from diptych.manifest import AgentManifest
from diptych.manifest.documents import SourceLocation
from diptych.manifest.validation import validate_manifest
from diptych.models.probe import Capability, EndpointFindings, Failed
from diptych.serve.examination import AgentFindings, PeerFindings, ToolServerFindings

CALLS = Capability(is_taken=True, is_used=True)
TALKS = Capability(is_taken=True)
REFUSED = Capability()
PICKY = Capability(is_used=True, refusal="It does not accept the tool 'add'.")
BREAKS = Capability(failure=Failed("model_failed", "It failed (HTTP 500).", 500))
TOOL = {"name": "calc", "url": "http://calc:8000/mcp"}


def manifest(action_format: str = "json", **model: Any) -> AgentManifest:
    endpoint = {"name": "m", "endpoint": "http://models:8000/v1", **model}
    content = {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": "helper"},
        "spec": {"model": endpoint, "tools": [TOOL]},
    }
    valid = validate_manifest(content, SourceLocation("agent.yaml"))
    assert valid.spec.model is not None
    asked = valid.spec.model.model_copy(update={"action_format": action_format})
    return valid.model_copy(update={"spec": valid.spec.model_copy(update={"model": asked})})


def endpoint(**found: Any) -> EndpointFindings:
    basis: dict[str, Any] = {"name": "m", "origin": "http://models:8000", "seconds": 0.25}
    return EndpointFindings(**basis | found)


def agent(*models: EndpointFindings, **found: Any) -> AgentFindings:
    return AgentFindings("helper", models, found.get("servers", ()), found.get("peers", ()))


def said(found: AgentFindings, about: AgentManifest | None = None) -> list[tuple[Mark, str]]:
    return [(mark, text.strip()) for mark, text in sentences(found, about or manifest())]


@pytest.mark.parametrize(
    ("tools", "action_format", "mark", "text"),
    [
        (CALLS, "json", Mark.NOTE, "actionFormat: native would serve better"),
        (CALLS, "native", Mark.OK, "takes tools natively"),
        (CALLS, "auto", Mark.OK, "takes tools natively"),
        (TALKS, "json", Mark.OK, "made no call when told to: actionFormat: json serves it"),
        (TALKS, "native", Mark.NOTE, "actionFormat: json would serve better"),
        (TALKS, "auto", Mark.NOTE, "actionFormat: json would serve better"),
        (REFUSED, "json", Mark.OK, "takes no tools: actionFormat: json serves it"),
        (REFUSED, "native", Mark.FAILED, "takes no tools: set actionFormat to json or auto"),
        (REFUSED, "auto", Mark.OK, "takes no tools: actionFormat: auto will use json"),
        (PICKY, "json", Mark.OK, "of this agent's tools. It does not accept the tool 'add'."),
        (PICKY, "auto", Mark.NOTE, "It does not accept the tool 'add'."),
        (PICKY, "native", Mark.FAILED, "It does not accept the tool 'add'."),
        (BREAKS, "json", Mark.NOTE, "actionFormat: json serves it. It failed (HTTP 500)."),
        (BREAKS, "native", Mark.FAILED, "actionFormat: set it to json. It failed (HTTP 500)."),
        (BREAKS, "auto", Mark.FAILED, "actionFormat: set it to json. It failed (HTTP 500)."),
    ],
)
def test_each_format_with_each_way_to_take_tools(
    tools: Capability, action_format: str, mark: Mark, text: str
) -> None:
    _, about_tools, _ = said(agent(endpoint(tools=tools)), manifest(action_format))
    assert about_tools[0] is mark
    assert about_tools[1].endswith(text)


@pytest.mark.parametrize(
    ("schema", "kind", "mark", "text"),
    [
        (Capability(True, True), "json_schema", Mark.OK, "keeps to a JSON schema"),
        (Capability(True, False), "json_schema", Mark.NOTE, "did not keep to it"),
        (Capability(True, False), "json_object", Mark.OK, "json_object, and no JSON schema"),
        (Capability(), None, Mark.OK, "the prompt describes the schema"),
        (BREAKS, "json_schema", Mark.NOTE, "fails when it is sent a JSON schema. It failed"),
    ],
)
def test_each_way_to_take_a_schema(
    schema: Capability, kind: str | None, mark: Mark, text: str
) -> None:
    _, about_schema, _ = said(agent(endpoint(schema=schema, schema_kind=kind)))
    assert about_schema[0] is mark
    assert text in about_schema[1]


@pytest.mark.parametrize(
    ("context", "window", "parameters", "mark", "text"),
    [
        (None, None, {}, Mark.OK, "does not say how long its context is: it will be learned"),
        (None, 4096, {}, Mark.OK, "how long its context is: context.maxTokens 4,096 holds"),
        (4096, None, {}, Mark.OK, "context 4,096 tokens: set context.maxTokens, or leave it"),
        (4096, None, {"maxTokens": 4095}, Mark.OK, "4,096 tokens: set context.maxTokens"),
        (4096, None, {"maxTokens": 4096}, Mark.NOTE, "maxTokens 4,096 leaves no room in it"),
        (4096, 4096, {}, Mark.OK, "context 4,096 tokens; context.maxTokens is 4,096"),
        (4096, 8192, {}, Mark.NOTE, "context.maxTokens 8,192 is more than it takes"),
    ],
)
def test_the_context(
    context: int | None, window: int | None, parameters: dict[str, Any], mark: Mark, text: str
) -> None:
    about = manifest(parameters=parameters)
    limits = about.spec.context.model_copy(update={"max_tokens": window})
    spec = about.spec.model_copy(update={"context": limits})
    *_, last = said(agent(endpoint(context=context)), about.model_copy(update={"spec": spec}))
    assert last[0] is mark
    assert text in last[1]


def test_a_model_that_fails_is_told_with_the_nearest_names() -> None:
    failure = Failed("model_refused", "The endpoint refused (HTTP 404).", 404)
    names = ("gpt-5-mini", "gpt-5", "whisper", "dall-e", "tts", "sora", "o3")
    found = endpoint(name="gpt5-mini", failure=failure, models=names, seconds=None)
    assert said(agent(found)) == [
        (Mark.FAILED, "model gpt5-mini: The endpoint refused (HTTP 404)."),
        (
            Mark.FAILED,
            (
                "model gpt5-mini: http://models:8000 does not list it: set the name to one of "
                "gpt-5-mini, gpt-5 and 5 more"
            ),
        ),
    ]


def test_names_of_an_endpoint_cannot_write_lines_of_their_own() -> None:
    found = endpoint(models=("a\n  ✓ all is well\x1b[0m", "b" * 5000))
    _, text = said(agent(found))[1]
    assert text.startswith("model m: it answers, but does not list that name; it lists a ✓ all")
    assert text.isprintable()
    assert len(text) < 400


def test_a_name_that_is_answered_and_not_listed_is_doubtful() -> None:
    found = endpoint(models=("other",))
    assert (Mark.NOTE, "model m: it answers, but does not list that name; it lists other") in said(
        agent(found)
    )
    assert said(agent(endpoint(models=("m",), is_listed=True)))[0] == (
        Mark.OK,
        "model m: answers at http://models:8000, in 0.2 s",
    )


def test_what_is_left_out_says_which_field_to_remove() -> None:
    refused = ("does not support temperature: it is left out", "requires max_completion_tokens")
    fallback = endpoint(refused=refused)
    assert said(agent(endpoint(), fallback))[-2:] == [
        (
            Mark.NOTE,
            (
                "does not support temperature: it is left out; remove "
                "model.fallbacks[0].parameters.temperature"
            ),
        ),
        (Mark.OK, "requires max_completion_tokens"),
    ]


def test_servers_agents_and_scripts() -> None:
    servers = (
        ToolServerFindings("calc", None, ("a", "b", "c", "d", "e", "f"), 0.14),
        ToolServerFindings("empty", None, (), 0.1),
        ToolServerFindings("part", None, ("a",), 0.1, ("2 left out, as b", "1 left out, as c")),
        ToolServerFindings("l", None, ("a",), 0.1, cut=("a",)),
        ToolServerFindings("gone", "connection refused", (), 0.1),
    )
    peers = (
        PeerFindings("near", is_asked=False),
        PeerFindings("well"),
        PeerFindings("ill", "it cannot be reached"),
    )
    assert said(agent(servers=servers, peers=peers)) == [
        (Mark.NOTE, "model: a script answers (DEBUG_MOCK_RESPONSES); it was not asked"),
        (Mark.OK, "tool server calc: 6 tools in 0.1 s: a, b, c, d, e and 1 more"),
        (Mark.NOTE, "tool server empty: 0 tools in 0.1 s"),
        (Mark.NOTE, "tool server part: 1 tool in 0.1 s: a; 2 left out, as b; 1 left out, as c"),
        (
            Mark.NOTE,
            "tool server l: 1 tool in 0.1 s: a; descriptions over 4,096 characters are cut: a",
        ),
        (Mark.FAILED, "tool server gone: connection refused"),
        (Mark.OK, "agent near: is in these files, and was not asked"),
        (Mark.OK, "agent well: its card is there"),
        (Mark.FAILED, "agent ill: it cannot be reached"),
    ]
