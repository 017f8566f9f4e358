"""What a manifest may say; each mistake is one line: the field, what is wrong, the fix."""

import re
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
URL = "http://127.0.0.1:8000/mcp"
MODEL = {"name": "gpt-5-mini", "endpoint": "https://models.example.com/v1"}
KEY = "{secretKeyRef: {name: models, key: api-key}}"
LABEL = 'must be lower-case letters, digits and "-", not "-" first or last, 63 characters at most'
SHORTHANDS = {
    "DIGEST": f"sha256:{'0' * 64}",
    "REF": "{secretKeyRef: {name: a, key: b}}",
    "URL": f"'{URL}'",
}

MISTAKES = r"""
tools: [{name: calc, url: URL, pin: [{tool: add, digest: 'sha256:abc'}]}]
    spec.tools[0].pin[0].digest: must be "sha256:" and 64 hexadecimal digits; remove it and run
    `diptych pin FILE` (got "sha256:abc")
tools: [{name: calc, url: URL, pin: [{tool: add*, digest: DIGEST}]}]
    spec.tools[0].pin[0].tool: must be the name of a tool: 1 to 64 of A-Z, a-z, 0-9, ".", "-" and
    "_" (got "add*")
tools: [{name: calc, url: URL, pin: [{tool: add, digest: DIGEST}, {tool: add, digest: DIGEST}]}]
    spec.tools[0].pin: pinned tools must differ; more than one is called add
expose: {host: a.example.com}
    spec.expose: needs exactly one of gateway, ingress
expose: {host: Example, ingress: {}}
    spec.expose.host: must be a host name such as agent.example.com, in lower case (got "Example")
expose: {host: a.example.com, gateway: {name: g}, tls: {secretName: s}}
    spec.expose: a gateway has its certificate itself: leave tls.secretName out
metadata: {labels: {app.kubernetes.io/name: x}}
    spec.metadata: labels: keys of kubernetes.io, k8s.io and diptych.dev are not the agent's to
    set
metadata: {annotations: {diptych.dev/applied: x}}
    spec.metadata: annotations: keys of kubernetes.io, k8s.io and diptych.dev are not the agent's
    to set
policy: [{match: {tool: a}, do: deny, when: argz.x > 1}]
    spec.policy[0].when: column 5: undeclared reference to 'argz.x' (got "argz.x > 1")
policy: [{match: {agent: a}, do: deny, when: has(tool.name)}]
    spec.policy[0].when: column 4: undeclared reference to 'tool.name' (got "has(tool.name)")
schedules: [{name: a, cron: '0 25 * * *', message: hi}]
    spec.schedules[0].cron: hour: must be 0 to 23, *, or such as 1-5, 1,5 and */5, and is 25 (got
    "0 25 * * *")
schedules: [{name: a, cron: '0 0 * *', message: hi}]
    spec.schedules[0].cron: must be a cron line of five fields, each after one blank: minute, hour,
    day of month, month, day of week (0 to 6, or SUN to SAT), such as "0 7 * * 1-5" (got
    "0 0 * *")
schedules: [{name: a, cron: '0 0 * * *', timeZone: Berlin, message: hi}]
    spec.schedules[0].timeZone: there is no time zone Berlin; write one like Europe/Berlin (got
    "Berlin")
schedules: [{name: a, cron: '0 0 * * *', message: ' '}]
    spec.schedules[0].message: must not be blank (got " ")
schedules: [{name: a, cron: '0 0 * * *', message: hi, missed: all}]
    spec.schedules[0].missed: must be "skip" or "once" (got "all")
schedules: [{name: a, cron: '0 0 * * *', message: hi, zone: UTC}]
    spec.schedules[0].zone: is not a known field; known here: name, timeZone, cron, message,
    session, missed
triggers: [{name: a, signature: github, message: body.a}]
    spec.triggers[0]: needs a secret, unless its signature is none: then it has none, and callers
    need the right ask
triggers: [{name: a, signature: none, message: body.a, when: "body.a == 1 &&"}]
    spec.triggers[0].when: column 15: mismatched input the end (got "body.a == 1 &&")
triggers: [{name: a, signature: none, message: args.a}]
    spec.triggers[0].message: column 5: undeclared reference to 'args.a' (got "args.a")
triggers: [{name: a, signature: none, message: body.a, session: "true"}]
    spec.triggers[0].session: column 1: must be a string or a whole number, and is bool (got
    "true")
policy: [{match: {}, do: ask}]
    spec.policy[0].match: needs exactly one of tool, agent
loop: {maxStep: 3}
    spec.loop.maxStep: is not a known field (did you mean "maxSteps"?)
max_steps: 3
    spec.max_steps: is not a known field here (did you mean "spec.loop.maxSteps"?)
model: {apiKey: {secretKeyRef: {name: a, key: b, zzz: c}}}
    spec.model.apiKey.secretKeyRef.zzz: is not a known field; known here: name, key
description: null
    spec.description: is empty; give it a value or remove it
instructions: a, instructionsFrom: REF
    spec: needs only one of instructions, instructionsFrom
instructionsFrom: {}
    spec.instructionsFrom: needs exactly one of configMapKeyRef, secretKeyRef
model: {name: ''}
    spec.model.name: must not be empty (got "")
model: {endpoint: models.example.com/v1}
    spec.model.endpoint: must start with http:// or https:// (got "models.example.com/v1")
budget: {tokens: 1, perDay: {cost: '2000000'}}
    spec.budget.perDay.cost: must be a decimal above 0 as a string, such as "0.50", with at most 6
    digits before the point and 6 after it (got "2000000")
model: {parameters: {temperature: 0.2}}
    spec.model.parameters.temperature: must be a decimal from 0 to 2 as a string, such as "0.2"
    (got 0.2)
model: {parameters: {temperature: '2.1'}}
    spec.model.parameters.temperature: must be a decimal from 0 to 2 as a string, such as "0.2"
    (got "2.1")
model: {parameters: {maxTokens: '2000'}}
    spec.model.parameters.maxTokens: must be a whole number (got "2000")
model: {timeouts: {idle: 30}}
    spec.model.timeouts.idle: must be a duration such as "30s", "1m30s" or "500ms" (got 30)
model: {timeouts: {idle: 0s}}
    spec.model.timeouts.idle: must be more than "0s" and at most "24h" (got "0s")
tools: [{url: URL}]
    spec.tools[0].name: is required
tools: [{name: my__tools, url: URL}]
    spec.tools[0].name: must be lower-case letters, digits and "-", not "-" first or last, 63
    characters at most (got "my__tools")
tools: [{name: a, url: URL}, {name: a, url: URL}]
    spec.tools: tool servers must differ; more than one is called a
tools: [{name: calculator, url: 'calc:8000'}]
    spec.tools[0].url: must start with http:// or https:// (got "calc:8000")
tools: [{name: calculator, url: 'http://:8000/mcp'}]
    spec.tools[0].url: must be a URL with a host, such as http://127.0.0.1:8000 (got
    "http://:8000/mcp")
tools: [{name: calculator, url: 'http://a:99999/'}]
    spec.tools[0].url: must be a URL with a host, such as http://127.0.0.1:8000 (got
    "http://a:99999/")
tools: [{name: calculator, url: 'http://user:secret@calc/'}]
    spec.tools[0].url: must not hold a user or password; use a reference to a Secret for that
tools: [{name: calculator}]
    spec.tools[0]: needs exactly one of url, serviceRef, command, ref
tools: [{name: calc, url: URL, command: [calc]}]
    spec.tools[0]: needs exactly one of url, serviceRef, command, ref
tools: [{name: a, command: [a], headers: [{name: b, value: c}]}]
    spec.tools[0]: a command has no headers; remove them, or give a url
tools: [{name: a, command: [a], auth: {as: person}}]
    spec.tools[0]: a command has no auth; remove it, or give a url
tools: [{name: a, url: URL, headers: [{name: authorization, value: b}], auth: {as: person}}]
    spec.tools[0]: needs only one of auth and a header Authorization
tools: [{name: a, url: URL, auth: {clientId: c}}]
    spec.tools[0].auth: needs clientId with clientSecret or privateKey, or `as: person`
tools: [{name: a, url: URL, auth: {clientId: c, clientSecret: REF}}]
    spec.tools[0].auth: clientSecret and privateKey need clientId, and the issuer that may receive
    them
tools: [{name: a, url: URL, auth: {clientId: c, issuer: URL, clientSecret: REF, privateKey: REF}}]
    spec.tools[0].auth: needs only one of clientSecret, privateKey
tools: [{name: a, url: URL, auth: {as: person, clientId: c, issuer: URL, privateKey: REF}}]
    spec.tools[0].auth: privateKey is for `as: agent`; use clientSecret, or no secret
tools: [{name: a, url: URL, auth: {as: person, scopes: [a b]}}]
    spec.tools[0].auth.scopes[0]: must be an OAuth scope: no blanks, quotes or backslashes (got "a
    b")
tools: [{name: calc, url: URL, env: [{name: A, value: b}]}]
    spec.tools[0]: only a command has env; remove it, or give a command
tools: [{name: a, command: [a], env: [{name: A}]}]
    spec.tools[0].env[0]: needs exactly one of value, valueFrom
tools: [{name: calc, url: URL, allow: []}]
    spec.tools[0].allow: must not be an empty list; leave the field out instead
model: {apiKey: REF, headers: [{name: authorization, value: Bearer c}]}
    spec.model: needs only one of apiKey and a header Authorization
model: {fallbacks: [{name: small}]}
    spec.model.fallbacks[0]: needs provider, endpoint or apiRef
model: {provider: opnai}
    spec.model.provider: must be one of openai, anthropic, gemini, mistral, groq, deepseek,
    openrouter, together, xai, azure, ollama, lmstudio, llamacpp, vllm; did you mean "openai"?
    (got "opnai")
tools: [{name: calc, url: URL, headers: [{name: Authorization, value: "Bearer\nsecret"}]}]
    spec.tools[0].headers[0].value: must be one line of ASCII text
tools: [{name: calc, url: URL, headers: [{name: Authorization}]}]
    spec.tools[0].headers[0]: needs exactly one of value, valueFrom
tools: [{name: calc, url: URL, headers: [{name: A, value: b}, {name: a, value: c}]}]
    spec.tools[0].headers: headers must differ; more than one is called a
agents: [{name: a}, {as: a, url: URL}]
    spec.agents: agents must differ; more than one is called a
agents: [{url: URL}]
    spec.agents[0]: a url needs "as": the name that the model knows the agent by
agents: [{name: a, url: URL}]
    spec.agents[0]: needs exactly one of name, url
loop: {maxSteps: 101}
    spec.loop.maxSteps: must be 100 or less (got 101)
loop: {onMaxSteps: fail}
    spec.loop.onMaxSteps: must be "stop" or "answer" (got "fail")
container: {env: [{name: A, value: 1}]}
    spec.container.env[0].value: must be a string; quote it
container: {env: [{name: A, value: a, valueFrom: REF}]}
    spec.container.env[0]: needs only one of value, valueFrom
container: {env: [{name: A}, {name: A}]}
    spec.container.env: variables must differ; more than one is called A
network: {extraEgress: [{to: [{}]}]}
    spec.network.extraEgress[0].to[0]: needs podSelector, namespaceSelector or both, or else
    ipBlock
allowedNamespaces: {from: Selector}
    spec.allowedNamespaces: selector belongs to `from: Selector`, and to it only
network: {extraIngress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: In}]}}]}]}
    spec.network.extraIngress[0].from[0].podSelector.matchExpressions[0]: values are needed for In
    and NotIn, and for them only
container: {resources: {limits: {cpu: 0.5}}}
    spec.container.resources.limits.cpu: must be a quantity such as "500m", "2" or "512Mi" (got
    0.5)
sessions: {redis: {}}
    spec.sessions.redis: needs exactly one of urlFrom, serviceRef
sessions: {redis: {url: 'redis://:sesame@r'}}
    spec.sessions.redis.url: is not a known field (did you mean "urlFrom"?)
sessions: {redis: {serviceRef: {name: redis, path: /}}}
    spec.sessions.redis.serviceRef.path: is not a known field here (did you mean
    "spec.tools.serviceRef.path"?)
sessions: {redis: {serviceRef: {name: redis, port: 0}}}
    spec.sessions.redis.serviceRef.port: must be 1 or more (got 0)
sessions: {adopt: one}
    spec.sessions: adopt needs redis: without it sessions end with their pod
sessions: {onDelete: purge}
    spec.sessions: onDelete: purge needs redis: without it sessions end with their pod
sessions: {redis: {urlFrom: REF}, retention: 59s}
    spec.sessions.retention: must be at least "1m" and at most "720h" (got "59s")
sessions: {redis: {urlFrom: REF}, retention: 720h1ms}
    spec.sessions.retention: must be at least "1m" and at most "720h" (got "720h1ms")
sessions: {redis: {urlFrom: REF}, retention: 30d}
    spec.sessions.retention: must be a duration such as "30s", "1m30s" or "500ms" (got "30d")
sessions: {retention: 1h}
    spec.sessions: retention needs redis: without it sessions end with their pod
replicas: 2
    spec: replicas above 1 need sessions.redis: without it each pod knows its own sessions only
replicas: 2, sessions: {whenBusy: enqueue}
    spec: replicas above 1 need sessions.redis: without it each pod knows its own sessions only
chat: {callerTools: run}
    spec.chat.callerTools: must be "refuse", "ignore" or "pass" (got "run")
chat: {callerSystem: obey}
    spec.chat.callerSystem: must be "quote" or "off" (got "obey")
chat: {corsOrigins: ['https://app.example.com/']}
    spec.chat.corsOrigins[0]: must be "*" or an origin such as https://app.example.com, in lower
    case, without a path (got "https://app.example.com/")
model: {inputs: [text]}
    spec.model.inputs[0]: must be "image", "audio" or "file" (got "text")
tools: [{name: result, url: URL}]
    spec.tools[0].name: result and caller name the agent's own tool result__read and the tools of a
    chat's caller; use another name (got "result")
tools: [{name: a, command: [" "]}]
    spec.tools[0]: command must begin with the name of a program
budget: {cost: "1"}
    spec: budget.cost needs model.prices: give input and output, the prices of a million tokens
agents: [{as: a, url: URL, namespace: b}]
    spec.agents[0]: a url has no namespace; remove it, or give a name
outputSchema: []
    spec.outputSchema: must be a mapping of fields
podTemplate: {spec: 5}
    spec.podTemplate.spec: must be a mapping of fields
model: {apiRef: {name: house}}
    spec.model: apiRef takes provider, endpoint, apiKey and headers from the ModelAPI; remove them
model: {fallbacks: [{endpoint: URL}]}
    spec.model.fallbacks[0]: name is required: the model's name, as its endpoint knows it
tools: [{name: a, ref: {name: b, kind: Server}}]
    spec.tools[0].ref: apiGroup and kind belong together; leave both out for an MCPServer of
    diptych.dev
hosting: {pool: p}, podTemplate: {}
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hosting: {pool: p}, replicas: 1
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hosting: {pool: p}, container: {image: a}
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hosting: {pool: p}, container: {imagePullPolicy: Always}
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hosting: {pool: p}, container: {envFrom: []}
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hosting: {pool: p}, container: {resources: {}}
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hosting: {pool: p}, container: {env: [{name: DEBUG_MOCK_RESPONSES}, {name: A}]}
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hosting: {pool: p}, tools: [{name: a, url: URL}, {name: b, command: [b]}]
    spec: hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, tools
    with command, and of container all but DEBUG_MOCK_RESPONSES in env
hooks: [{at: onCall, url: "https://h"}]
    spec.hooks[0].at: must be "beforeCall", "afterCall", "afterStep" or "validateAnswer"
    (got "onCall")
hooks: [{at: afterStep, url: "https://h", timeout: 31s}]
    spec.hooks[0].timeout: must be more than "0s" and at most "30s" (got "31s")
hooks: [{at: afterStep, url: "https://h", retries: 3}]
    spec.hooks[0].retries: is not a known field; known here: at, url, timeout, headers, signingKey
"""
"""Fields of a spec with a mistake, and below them its line."""


def manifest(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Agent",
        "metadata": {"name": "coordinator"},
        "spec": {"model": MODEL, **spec},
    }


def named(name: object) -> dict[str, Any]:
    return manifest() | {"metadata": {"name": name}}


def problems_of(content: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate_manifest(content, SourceLocation("agent.yaml"))
    return [line.removeprefix("agent.yaml: ") for line in caught.value.problems]


def mistakes() -> list[tuple[str, str]]:
    found = re.findall(r"^(\S.*)\n((?:    .*\n)+)", MISTAKES, re.MULTILINE)
    return [(fields, " ".join(line.split())) for fields, line in found]


@pytest.mark.parametrize(("fields", "line"), mistakes())
def test_a_mistake_is_one_line_that_names_field_and_fix(fields: str, line: str) -> None:
    for short, text in SHORTHANDS.items():
        fields = fields.replace(short, text)
    spec = yaml.safe_load(f"{{{fields}}}")
    content = manifest(**spec | {"model": MODEL | spec.get("model", {})})
    assert problems_of(content) == [line]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            manifest() | {"apiVersion": "diptych.dev/v1"},
            'apiVersion: must be "diptych.dev/v1alpha1" (got "diptych.dev/v1")',
        ),
        (
            {"apiVersion": API_VERSION, "kind": "Agent", "metadata": {"name": "a"}},
            "spec: is required",
        ),
        (manifest() | {"spec": None}, "spec: must be a mapping of fields"),
        (manifest() | {"spec": {"model": MODEL, 1: "x"}}, "spec[1]: is not a string; quote it"),
        (named(123), "metadata.name: must be a string; quote it (got 123)"),
        (named(name=True), "metadata.name: must be a string; quote it (got true)"),
        (named("My_Agent"), f'metadata.name: {LABEL} (got "My_Agent")'),
        (named("4u"), 'metadata.name: must begin with a letter (got "4u")'),
        (named("a" * 64), f"metadata.name: {LABEL}"),
        (
            manifest(instructions="a" * (128 * 1024 + 1)),
            "spec.instructions: must be 131072 characters or fewer",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_a_mistake_around_the_spec_is_one_line_too(content: dict[str, Any], line: str) -> None:
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
        ({"model": "gpt-5-mini"}, "model: {name: gpt-5-mini, provider: …}"),
        ({"model": "ollama:qwen3:4b"}, "model: {provider: ollama, name: qwen3:4b}"),
        ({"policy": "match"}, "policy: [{match: {tool: …}, do: …}]"),
        ({"policy": "ask"}, "policy: [{match: {tool: …}, do: ask}]"),
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
        "spec.tools[1]: needs exactly one of url, serviceRef, command, ref",
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
