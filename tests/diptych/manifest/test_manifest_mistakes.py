"""Each mistake in a manifest is told with one exact line: the field, what is wrong, the fix."""

import re
from typing import Any

import pytest

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION
from diptych.manifest.documents import SourceLocation
from diptych.manifest.validation import validate_manifest

URL = "http://127.0.0.1:8000/mcp"
MODEL = {"name": "gpt-5-mini", "endpoint": "https://models.example.com/v1"}
KEY = "{secretKeyRef: {name: models, key: api-key}}"
LABEL = 'must be lower-case letters, digits and "-", not "-" first or last, 63 characters at most'
DURATION = 'must be a duration such as "30s", "1m30s" or "500ms"'


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


def tool(**fields: Any) -> dict[str, Any]:
    return manifest(tools=[{"name": "calculator", "url": URL, **fields}])


def model(**fields: Any) -> dict[str, Any]:
    return manifest(model=MODEL | fields)


def env(**fields: Any) -> dict[str, Any]:
    return manifest(container={"env": [{"name": "A", **fields}]})


def named(name: object) -> dict[str, Any]:
    return manifest() | {"metadata": {"name": name}}


def parameter(**fields: Any) -> dict[str, Any]:
    return model(parameters=fields)


DIGEST = 'must be "sha256:" and 64 hexadecimal digits; remove it and run `diptych pin FILE`'


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(
            tool(pin=[{"tool": "add", "digest": "sha256:abc"}]),
            f'spec.tools[0].pin[0].digest: {DIGEST} (got "sha256:abc")',
        ),
        pytest.param(
            tool(pin=[{"tool": "add*", "digest": f"sha256:{'0' * 64}"}]),
            "spec.tools[0].pin[0].tool: must be the name of a tool: 1 to 64 of A-Z, a-z, 0-9, "
            '".", "-" and "_" (got "add*")',
        ),
        pytest.param(
            tool(pin=[{"tool": "add", "digest": f"sha256:{'0' * 64}"}] * 2),
            "spec.tools[0].pin: pinned tools must differ; more than one is called add",
        ),
        pytest.param(
            manifest(expose={"host": "a.example.com"}),
            "spec.expose: needs exactly one of gateway, ingress",
        ),
        pytest.param(
            manifest(expose={"host": "Example", "ingress": {}}),
            "spec.expose.host: must be a host name such as agent.example.com, in lower case "
            '(got "Example")',
        ),
        pytest.param(
            manifest(
                expose={
                    "host": "a.example.com",
                    "gateway": {"name": "g"},
                    "tls": {"secretName": "s"},
                }
            ),
            "spec.expose: a gateway has its certificate itself: leave tls.secretName out",
        ),
        pytest.param(
            manifest(metadata={"labels": {"app.kubernetes.io/name": "x"}}),
            "spec.metadata: labels: keys of kubernetes.io, k8s.io and diptych.dev are not the "
            "agent's to set",
        ),
        pytest.param(
            manifest(metadata={"annotations": {"diptych.dev/applied": "x"}}),
            "spec.metadata: annotations: keys of kubernetes.io, k8s.io and diptych.dev are not the "
            "agent's to set",
        ),
        pytest.param(
            manifest(policy=[{"match": {"tool": "a"}, "do": "deny", "when": "argz.x > 1"}]),
            "spec.policy[0].when: column 5: undeclared reference to 'argz.x' (got \"argz.x > 1\")",
        ),
        pytest.param(
            manifest(policy=[{"match": {"agent": "a"}, "do": "deny", "when": "has(tool.name)"}]),
            "spec.policy[0].when: column 4: undeclared reference to 'tool.name' "
            '(got "has(tool.name)")',
        ),
        pytest.param(
            manifest(policy=[{"match": {}, "do": "ask"}]),
            "spec.policy[0].match: needs exactly one of tool, agent",
        ),
        pytest.param(
            manifest() | {"apiVersion": "diptych.dev/v1"},
            'apiVersion: must be "diptych.dev/v1alpha1" (got "diptych.dev/v1")',
        ),
        pytest.param(
            {"apiVersion": API_VERSION, "kind": "Agent", "metadata": {"name": "a"}},
            "spec: is required",
        ),
        pytest.param(
            manifest() | {"spec": None}, "spec: must be a mapping of fields", id="an empty spec"
        ),
        pytest.param(named(123), "metadata.name: must be a string; quote it (got 123)", id="123"),
        pytest.param(
            named(name=True), "metadata.name: must be a string; quote it (got true)", id="yes"
        ),
        pytest.param(named("My_Agent"), f'metadata.name: {LABEL} (got "My_Agent")', id="not DNS"),
        pytest.param(
            named("4u"), 'metadata.name: must begin with a letter (got "4u")', id="a digit first"
        ),
        pytest.param(named("a" * 64), f"metadata.name: {LABEL}", id="a name of 64 characters"),
        pytest.param(
            manifest(loop={"maxStep": 3}),
            'spec.loop.maxStep: is not a known field (did you mean "maxSteps"?)',
        ),
        pytest.param(
            manifest(max_steps=3),
            'spec.max_steps: is not a known field here (did you mean "spec.loop.maxSteps"?)',
        ),
        pytest.param(
            model(apiKey={"secretKeyRef": {"name": "a", "key": "b", "zzz": "c"}}),
            "spec.model.apiKey.secretKeyRef.zzz: is not a known field; known here: name, key",
        ),
        pytest.param(
            manifest() | {"spec": {"model": MODEL, 1: "x"}},
            "spec[1]: is not a string; quote it",
        ),
        pytest.param(
            manifest(description=None),
            "spec.description: is empty; give it a value or remove it",
        ),
        pytest.param(
            manifest(
                instructions="a", instructionsFrom={"secretKeyRef": {"name": "a", "key": "b"}}
            ),
            "spec: needs only one of instructions, instructionsFrom",
        ),
        pytest.param(
            manifest(instructions="a" * (128 * 1024 + 1)),
            "spec.instructions: must be 131072 characters or fewer",
        ),
        pytest.param(
            manifest(instructionsFrom={}),
            "spec.instructionsFrom: needs exactly one of configMapKeyRef, secretKeyRef",
        ),
        pytest.param(model(name=""), 'spec.model.name: must not be empty (got "")', id="no model"),
        pytest.param(
            model(endpoint="models.example.com/v1"),
            "spec.model.endpoint: must start with http:// or https:// "
            '(got "models.example.com/v1")',
        ),
        pytest.param(
            manifest(budget={"tokens": 1, "perDay": {"cost": "2000000"}}),
            'spec.budget.perDay.cost: must be a decimal above 0 as a string, such as "0.50", '
            'with at most 6 digits before the point and 6 after it (got "2000000")',
        ),
        pytest.param(
            parameter(temperature=0.2),
            "spec.model.parameters.temperature: must be a decimal from 0 to 2 as a string, such as "
            '"0.2" (got 0.2)',
        ),
        pytest.param(
            parameter(temperature="2.1"),
            "spec.model.parameters.temperature: must be a decimal from 0 to 2 as a string, such as "
            '"0.2" (got "2.1")',
        ),
        pytest.param(
            parameter(maxTokens="2000"),
            'spec.model.parameters.maxTokens: must be a whole number (got "2000")',
        ),
        pytest.param(
            model(timeouts={"idle": 30}),
            f"spec.model.timeouts.idle: {DURATION} (got 30)",
        ),
        pytest.param(
            model(timeouts={"idle": "0s"}),
            'spec.model.timeouts.idle: must be more than "0s" and at most "24h" (got "0s")',
        ),
        pytest.param(
            manifest(tools=[{"url": URL}]), "spec.tools[0].name: is required", id="a nameless tool"
        ),
        pytest.param(
            tool(name="my__tools"),
            f'spec.tools[0].name: {LABEL} (got "my__tools")',
        ),
        pytest.param(
            manifest(tools=[{"name": "a", "url": URL}, {"name": "a", "url": URL}]),
            "spec.tools: tool servers must differ; more than one is called a",
        ),
        pytest.param(
            tool(url="calc:8000"),
            'spec.tools[0].url: must start with http:// or https:// (got "calc:8000")',
        ),
        pytest.param(
            tool(url="http://:8000/mcp"),
            "spec.tools[0].url: must be a URL with a host, such as http://127.0.0.1:8000 "
            '(got "http://:8000/mcp")',
        ),
        pytest.param(
            tool(url="http://a:99999/"),
            "spec.tools[0].url: must be a URL with a host, such as http://127.0.0.1:8000 "
            '(got "http://a:99999/")',
        ),
        pytest.param(
            tool(url="http://user:secret@calc/"),
            "spec.tools[0].url: must not hold a user or password; use a reference to a Secret for "
            "that",
        ),
        pytest.param(
            manifest(tools=[{"name": "calculator"}]),
            "spec.tools[0]: needs exactly one of url, serviceRef, command",
        ),
        pytest.param(
            tool(command=["calc"]),
            "spec.tools[0]: needs exactly one of url, serviceRef, command",
        ),
        pytest.param(
            manifest(
                tools=[{"name": "a", "command": ["a"], "headers": [{"name": "b", "value": "c"}]}]
            ),
            "spec.tools[0]: a command has no headers; remove them, or give a url",
        ),
        pytest.param(
            tool(env=[{"name": "A", "value": "b"}]),
            "spec.tools[0]: only a command has env; remove it, or give a command",
        ),
        pytest.param(
            manifest(tools=[{"name": "a", "command": ["a"], "env": [{"name": "A"}]}]),
            "spec.tools[0].env[0]: needs exactly one of value, valueFrom",
        ),
        pytest.param(
            tool(allow=[]),
            "spec.tools[0].allow: must not be an empty list; leave the field out instead",
        ),
        pytest.param(
            model(
                apiKey={"secretKeyRef": {"name": "a", "key": "b"}},
                headers=[{"name": "authorization", "value": "Bearer c"}],
            ),
            "spec.model: needs only one of apiKey and a header Authorization",
        ),
        pytest.param(
            model(fallbacks=[{"name": "small"}]),
            "spec.model.fallbacks[0].endpoint: is required",
        ),
        pytest.param(
            tool(headers=[{"name": "Authorization", "value": "Bearer\nsecret"}]),
            "spec.tools[0].headers[0].value: must be one line of ASCII text",
        ),
        pytest.param(
            tool(headers=[{"name": "Authorization"}]),
            "spec.tools[0].headers[0]: needs exactly one of value, valueFrom",
        ),
        pytest.param(
            tool(headers=[{"name": "A", "value": "b"}, {"name": "a", "value": "c"}]),
            "spec.tools[0].headers: headers must differ; more than one is called a",
        ),
        pytest.param(
            manifest(agents=[{"name": "a"}, {"as": "a", "url": URL}]),
            "spec.agents: agents must differ; more than one is called a",
        ),
        pytest.param(
            manifest(agents=[{"url": URL}]),
            'spec.agents[0]: a url needs "as": the name that the model knows the agent by',
        ),
        pytest.param(
            manifest(agents=[{"name": "a", "url": URL}]),
            "spec.agents[0]: needs exactly one of name, url",
        ),
        pytest.param(
            manifest(loop={"maxSteps": 101}),
            "spec.loop.maxSteps: must be 100 or less (got 101)",
        ),
        pytest.param(
            manifest(loop={"maxRetries": 101}),
            "spec.loop.maxRetries: must be 100 or less (got 101)",
        ),
        pytest.param(
            manifest(loop={"onMaxSteps": "fail"}),
            'spec.loop.onMaxSteps: must be "stop" or "answer" (got "fail")',
        ),
        pytest.param(
            env(value=1), "spec.container.env[0].value: must be a string; quote it", id="A=1"
        ),
        pytest.param(
            env(value="a", valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}),
            "spec.container.env[0]: needs only one of value, valueFrom",
        ),
        pytest.param(
            manifest(container={"env": [{"name": "A"}, {"name": "A"}]}),
            "spec.container.env: variables must differ; more than one is called A",
        ),
        pytest.param(
            manifest(network={"extraEgress": [{"to": [{}]}]}),
            "spec.network.extraEgress[0].to[0]: needs podSelector, namespaceSelector or both, or "
            "else ipBlock",
        ),
        pytest.param(
            manifest(allowedNamespaces={"from": "Selector"}),
            "spec.allowedNamespaces: selector belongs to `from: Selector`, and to it only",
        ),
        pytest.param(
            manifest(
                network={
                    "extraIngress": [
                        {
                            "from": [
                                {
                                    "podSelector": {
                                        "matchExpressions": [{"key": "a", "operator": "In"}]
                                    }
                                }
                            ]
                        }
                    ]
                }
            ),
            "spec.network.extraIngress[0].from[0].podSelector.matchExpressions[0]: values are "
            "needed for In and NotIn, and for them only",
        ),
        pytest.param(
            manifest(container={"resources": {"limits": {"cpu": 0.5}}}),
            'spec.container.resources.limits.cpu: must be a quantity such as "500m", "2" or '
            '"512Mi" (got 0.5)',
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_field_and_fix(content: dict[str, Any], line: str) -> None:
    assert problems_of(content) == [line]


@pytest.mark.parametrize(
    ("spec", "correction"),
    [
        ({"model": MODEL | {"apiKey": "sk-1"}}, f"apiKey: {KEY}"),
        ({"access": {"keys": ["sk-1"]}}, f"keys: [{{name: …, {KEY[1:]}]"),
        ({"hooks": [{"at": "afterCall", "url": URL, "signingKey": "sk-1"}]}, f"signingKey: {KEY}"),
        ({"container": {"env": ["A=sk-1"]}}, "env: [{name: …}]"),
        ({"instructionsFrom": "prompts"}, "instructionsFrom: {configMapKeyRef: {name: …, key: …}}"),
        ({"agents": ["researcher"]}, "agents: [{name: researcher}]"),
        ({"agents": "yes"}, 'agents: [{name: "yes"}]'),
        ({"tools": [URL]}, f'tools: [{{name: …, url: "{URL}"}}]'),
        ({"tools": [{"name": "a", "command": "npx calc"}]}, "command: [npx, calc]"),
        ({"sessions": {"redis": {"urlFrom": "redis://sk-1"}}}, f"urlFrom: {KEY}"),
        ({"tools": {"calculator": URL}}, '- "'),
        ({"tools": ["calculator"]}, "tools: [{name: calculator, url: …}]"),
        ({"tools": [{"name": "a", "url": URL, "allow": "pay*"}]}, 'allow: ["pay*"]'),
        ({"model": "gpt-5-mini"}, "model: {name: gpt-5-mini, endpoint: …}"),
        ({"policy": [{"match": "bank__pay", "do": "ask"}]}, "match: {tool: bank__pay}"),
        ({"access": {"grants": ["team"]}}, "grants: [{to: […], may: […]}]"),
        ({"loop": 5}, ""),
    ],
)
def test_a_value_of_another_form_is_written_as_it_was_meant(
    spec: dict[str, Any], correction: str
) -> None:
    (line,) = problems_of(manifest(**spec))
    assert re.split('; write |; begin each entry with "', line)[1:] == [correction] * bool(
        correction
    )
    assert "sk-1" not in line


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ({"model": MODEL | {"temperature": "1"}}, "spec.model.parameters.temperature"),
        ({"model": MODEL | {"fallbacks": [MODEL | {"maxTokens": 1}]}},
         "spec.model.fallbacks.parameters.maxTokens"),
        ({"model": MODEL | {"fallbacks": [MODEL | {"timeouts": {}}]}}, "spec.model.timeouts"),
        ({"maxTokens": 1}, "spec.context.maxTokens"),
        ({"temperature": "1"}, "spec.model.parameters.temperature"),
        ({"tools": [{"name": "a", "url": URL, "readOnly": True}]}, "spec.tools.overrides.readOnly"),
    ],
)  # fmt: skip
def test_of_fields_with_a_name_the_nearest_is_meant(spec: dict[str, Any], meant: str) -> None:
    (line,) = problems_of(manifest(**spec))
    assert line.endswith(f'is not a known field here (did you mean "{meant}"?)')
