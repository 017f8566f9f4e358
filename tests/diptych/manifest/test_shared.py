"""ModelAPIs and MCPServers on a laptop: what an Agent that refers to them becomes."""

import sys
from pathlib import Path
from typing import Any

import pytest

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION
from diptych.manifest.loader import LoadedAgents, LocalOptions, load_agents
from diptych.manifest.settings import AgentConfig, ModelConfig, ToolServerConfig
from diptych.manifest.shared import narrowed

PLATFORM = """\
kind: ModelAPI
metadata: {name: house, namespace: platform}
spec:
  endpoint: https://models.example.com/v1/
  apiKey: {secretKeyRef: {name: models, key: api-key}}
  headers: [{name: X-Team, value: platform}]
  models: [gpt-5-mini, "gpt-5*"]
  default: gpt-5-mini
  parameters: {temperature: "0.2", maxTokens: 1000}
  timeouts: {connect: 1s, idle: 10s}
  prices: {gpt-5-mini: {input: "0.25", output: "2.00"}}
  fallbacks: [{apiRef: {name: spare}, name: small}]
  proxy: {}
  allowedNamespaces: {from: All}
---
kind: ModelAPI
metadata: {name: spare, namespace: platform}
spec: {provider: openai, parameters: {maxTokens: 5}}
---
kind: ModelAPI
metadata: {name: own, namespace: platform}
spec:
  hosted: {engine: ollama, image: i}
  default: llama
  proxy: {}
  allowedNamespaces: {from: All}
---
kind: MCPServer
metadata: {name: far, namespace: platform}
spec:
  source:
    remote:
      url: https://tools.example.com/mcp
      headers:
      - {name: Authorization, valueFrom: {secretKeyRef: {name: far, key: token}}}
      - {name: X-Team, value: platform}
  tools:
    allow: [add, "pay*"]
    pin: [{tool: add, digest: DIGEST}]
    overrides: [{tool: add, readOnly: true}]
  allowedNamespaces: {from: All}
---
kind: MCPServer
metadata: {name: code, namespace: platform}
spec:
  source: {python: "def add(a: int) -> int: ...", packages: [numpy]}
  config:
    env: [{name: KEY, valueFrom: {secretKeyRef: {name: far, key: token}}}, {name: A, value: b}]
  allowedNamespaces: {from: All}
---
kind: MCPServer
metadata: {name: stdio, namespace: platform}
spec: {source: {command: [calc, --fast]}, allowedNamespaces: {from: All}}
---
kind: MCPServer
metadata: {name: image, namespace: platform}
spec:
  source: {containerImage: {ref: i}}
  config: {path: /tools}
  allowedNamespaces: {from: All}
""".replace("DIGEST", f"sha256:{'0' * 64}")
ENVIRON = {"MODELS_API_KEY": "k", "OPENAI_API_KEY": "o", "FAR_TOKEN": "t"}
OTHER = f"sha256:{'1' * 64}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(spec: str, services: dict[str, str], environ: dict[str, str]) -> LoadedAgents:
    agent = f"kind: Agent\nmetadata: {{name: a, namespace: team}}\nspec: {{{spec}}}\n"
    documents = [*PLATFORM.split("---\n"), agent]
    file = Path("f.yaml")
    file.write_text("---\n".join(f"apiVersion: {API_VERSION}\n{each}" for each in documents))
    return load_agents([file], LocalOptions(environ, services=services))


def config(
    spec: str, services: dict[str, str] | None = None, environ: dict[str, str] = ENVIRON
) -> AgentConfig:
    (found,) = loaded(spec, services or {}, environ).resolve(["http://127.0.0.1:1"])
    return found


def problems(spec: str, environ: dict[str, str] = ENVIRON) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(spec, {}, environ)
    return [line.partition(": spec.")[2] for line in caught.value.problems]


def model(spec: str, services: dict[str, str] | None = None) -> ModelConfig:
    found = config(f"model: {spec}", services).model
    assert found is not None
    return found


HOUSE = "apiRef: {name: house, namespace: platform}"


def test_a_model_takes_from_its_api_what_it_does_not_say_itself() -> None:
    found = model(f"{{{HOUSE}, parameters: {{temperature: '1'}}, timeouts: {{idle: 2s}}}}")
    assert (found.name, found.endpoint) == ("gpt-5-mini", "https://models.example.com/v1")
    assert found.api_key is not None
    assert (found.api_key(), found.headers["X-Team"]()) == ("k", "platform")
    assert (found.temperature, found.max_tokens) == (1.0, 1000)
    times = found.timeouts
    assert (times.connect, times.idle, times.total) == (1, 2, 300)
    (fallback,) = found.fallbacks
    assert (fallback.name, fallback.endpoint) == ("small", "https://api.openai.com/v1")
    assert fallback.api_key is not None
    assert (fallback.api_key(), fallback.max_tokens, fallback.timeouts) == ("o", 1000, times)


def test_an_agents_own_fallbacks_replace_those_of_the_api() -> None:
    found = model(
        "{endpoint: 'http://m', name: m, parameters: {maxTokens: 7}, fallbacks: "
        f"[{{{HOUSE}, name: gpt-5-nano}}, {{{HOUSE}, parameters: {{maxTokens: 8}}}}]}}"
    )
    assert [(each.name, each.max_tokens, each.temperature) for each in found.fallbacks] == [
        ("gpt-5-nano", 7, 0.2),
        ("gpt-5-mini", 8, 0.2),
    ]
    assert model(f"{{{HOUSE}, fallbacks: [{{endpoint: 'http://f', name: f}}]}}").fallbacks[
        0
    ].endpoint == ("http://f")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (f"{{{HOUSE}}}", ("0.25", "2.00")),
        (f"{{{HOUSE}, prices: {{input: '1', output: '2'}}}}", ("1", "2")),
        (f"{{{HOUSE}, name: gpt-5-nano}}", None),
    ],
)
def test_prices_are_the_agents_or_those_of_the_model_at_its_api(spec: str, expected: Any) -> None:
    prices = config(f"model: {spec}").definition.settings.prices
    assert (prices and (str(prices.input), str(prices.output))) == expected


@pytest.mark.parametrize("service", ["own", "platform/own"])
def test_a_hosted_model_has_the_address_that_service_gives_it(service: str) -> None:
    spec = "{apiRef: {name: own, namespace: platform}}"
    found = model(spec, {service: "http://127.0.0.1:11434"})
    assert (found.name, found.endpoint) == ("llama", "http://127.0.0.1:11434/v1")


def tool(spec: str, services: dict[str, str] | None = None) -> ToolServerConfig:
    agent = f"model: {{endpoint: 'http://m', name: m}}, tools: [{{name: t, {spec}}}]"
    (found,) = config(agent, services).tools
    return found


def ref(name: str, more: str = "") -> str:
    return f"ref: {{name: {name}, namespace: platform{more}}}"


def test_a_remote_server_keeps_its_key_and_is_narrowed() -> None:
    found = tool(
        f"{ref('far')}, allow: [payroll, 'add*'], headers: [{{name: X-Team, value: mine}}], "
        f"pin: [{{tool: add, digest: '{OTHER}'}}, {{tool: payroll, digest: '{OTHER}'}}], "
        "overrides: [{tool: add, sequential: true}], timeout: 5s"
    )
    assert (found.name, found.url, found.timeout) == ("t", "https://tools.example.com/mcp", 5)
    read = {name: value() for name, value in found.headers.items()}
    assert read == {"Authorization": "t", "X-Team": "mine"}
    assert found.allow == ("payroll", "add")
    assert found.pins == {"add": f"sha256:{'0' * 64}", "payroll": OTHER}
    assert [(o.sequential, o.read_only) for o in found.overrides] == [(True, None), (None, True)]


def test_programs_are_started_here_with_their_servers_variables_alone() -> None:
    assert tool(ref("stdio")).command == ("calc", "--fast")
    found = tool(ref("code"))
    code = "def add(a: int) -> int: ..."
    inline = (sys.executable, "-m", "diptych.cli.inline_tools")
    assert found.command == (*inline, code, "numpy")
    values = {k: v if isinstance(v, str) else v() for k, v in found.env.items()}
    assert values == {"KEY": "t", "A": "b"}


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        (ref("image"), "http://127.0.0.1:9/tools"),
        (ref("code"), "http://127.0.0.1:9/mcp"),
        (ref("elsewhere"), "http://127.0.0.1:9/mcp"),
        (ref("elsewhere", ", apiGroup: kagent.dev, kind: MCPServer"), "http://127.0.0.1:9/mcp"),
    ],
)
def test_a_server_that_is_not_here_has_the_address_that_service_gives_it(
    spec: str, url: str
) -> None:
    services = dict.fromkeys(("image", "platform/code", "elsewhere"), "http://127.0.0.1:9")
    found = tool(spec, services)
    assert (found.url, found.command) == (url, ())


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            "model: {apiRef: {name: gone}, name: m}",
            ("model.apiRef: there is no ModelAPI gone here (namespace team); add its file, or give "
            "--service gone=URL"),
        ),
        (
            "model: {apiRef: {name: own, namespace: platform}}",
            "hosted: needs a cluster; give --service own=URL",
        ),
        (
            f"model: {{{HOUSE}, name: gpt-4}}",
            "model.name: is no model of ModelAPI house, which has gpt-5-mini, gpt-5*",
        ),
        (
            f"model: {{{HOUSE}}}, tools: [{{name: t, {ref('image')}}}]",
            "source.containerImage: needs a cluster; give --service image=URL",
        ),
        (
            f"model: {{{HOUSE}}}, tools: [{{name: t, {ref('far')}, allow: [delete]}}]",
            "tools[0].allow: MCPServer far allows none of these; it allows add, pay*",
        ),
        (
            f"model: {{{HOUSE}}}, tools: [{{name: t, {ref('gone')}}}]",
            ("tools[0].ref: there is no MCPServer gone here (namespace platform); give --service "
            "gone=URL, or add its file"),
        ),
        (
            (f"model: {{{HOUSE}}}, "
            f"tools: [{{name: t, {ref('far', ', apiGroup: kagent.dev, kind: Remote')}}}]"),
            ("tools[0].ref: there is no Remote far here (namespace platform); give --service "
            "far=URL"),
        ),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_one_line(spec: str, line: str) -> None:
    assert problems(spec) == [line]


def test_a_missing_key_is_named_where_it_is_asked_for() -> None:
    lines = problems(f"model: {{{HOUSE}}}", {"OPENAI_API_KEY": "o"})
    assert lines == [
        (
            "apiKey: key api-key of Secret models is missing; set MODELS_API_KEY, or give "
            "--secrets FILE"
        )
    ]
    scripted = {"DEBUG_MOCK_RESPONSES": '["{}", "Hi"]'}
    assert config(f"model: {{{HOUSE}}}", environ=scripted).mock_responses is not None


@pytest.mark.parametrize(
    ("own", "servers", "both"),
    [
        (["*"], ["*"], ["*"]),
        (["*"], ["add"], ["add"]),
        (["add", "sub"], ["sub", "mul"], ["sub"]),
        (["a*"], ["add*", "b"], ["add*"]),
        (["a?d"], ["a*"], ["a?d"]),
        (["a*"], ["a?d"], ["a?d"]),
        (["a[b]*"], ["a?c"], []),
        (["a?c"], ["a*"], ["a?c"]),
        (["x"], ["y"], []),
    ],
)
def test_two_lists_of_tools_allow_what_both_allow(
    own: list[str], servers: list[str], both: list[str]
) -> None:
    assert narrowed(own, servers) == tuple(both)
