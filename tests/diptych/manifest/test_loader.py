"""From files to what agents are built from: references followed, loose ends told."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pydantic.alias_generators import to_camel

from diptych.core.errors import ConfigError
from diptych.core.run_settings import RunSettings
from diptych.manifest.agent import LoopSpec
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import (
    LocalOptions,
    check_files,
    config_from_content,
    load_agents,
)
from diptych.manifest.providers import provider_model
from diptych.manifest.settings import AgentConfig, ChatConfig

REF = "{secretKeyRef: {name: models, key: api-key}}"
HEAD = "apiVersion: diptych.dev/v1alpha1\nkind: Agent\n"
COORDINATOR = f"""{HEAD}metadata: {{name: coordinator}}
spec:
  description: Answers questions.
  examples: [What is new?]
  instructionsFrom: {{configMapKeyRef: {{name: prompts, key: coordinator}}}}
  model:
    name: gpt-5-mini
    endpoint: https://models.example.com/v1/
    apiKey: {{secretKeyRef: {{name: models, key: api-key}}}}
    inputs: [image]
    parameters: {{temperature: "0.2", maxTokens: 2000, reasoningEffort: low}}
  tools:
  - name: calculator
    serviceRef: {{name: calculator, port: 8000, path: /mcp}}
    headers: [{{name: Authorization, valueFrom: {{secretKeyRef: {{name: tools, key: token}}}}}}]
    overrides: [{{tool: "pay*", readOnly: false, timeout: 5m}}]
  agents:
  - name: researcher
  - {{name: lawyer, namespace: legal, as: counsel, shareContext: false}}
  - {{as: outside, url: "https://agents.example.com/.well-known/agent-card.json"}}
  chat: {{callerTools: ignore, allowParameters: [seed], corsOrigins: ["*"]}}
  loop: {{maxSteps: 7}}
"""
RESEARCHER = f"""{HEAD}metadata: {{name: researcher}}
spec:
  model: {{name: small, endpoint: "http://127.0.0.1:11434/v1"}}
  agents: [{{name: coordinator}}]
  container:
    env:
    - {{name: DEBUG_MOCK_RESPONSES, value: '["{{}}", "Found."]'}}
    - {{name: PUBLIC_URL, value: "https://researcher.example.com/"}}
    - {{name: TOKEN, valueFrom: {{secretKeyRef: {{name: tools, key: token, optional: true}}}}}}
"""
TOOLS_SECRET = (
    "apiVersion: v1\nkind: Secret\nmetadata: {name: tools}\nstringData: {token: Bearer t1}\n"
)
OPTIONS = LocalOptions(
    {"MODELS_API_KEY": "k1", "PROMPTS_COORDINATOR": "Be careful."},
    services={"calculator": "http://127.0.0.1:9001", "legal/lawyer": "http://127.0.0.1:9002/"},
)
GONE = "{secretKeyRef: {name: gone, key: t}}"
MOCKED = LocalOptions({"DEBUG_MOCK_RESPONSES": '["{}", "Hi."]'})


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, *documents: str) -> Path:
    path = Path(name)
    path.write_text("---\n".join(documents))
    return path


def agent(name: str = "a", spec: str = "{}") -> str:
    return f"{HEAD}metadata: {{name: {name}}}\nspec: {spec}\n"


def loaded(options: LocalOptions, *documents: str) -> tuple[AgentConfig, ...]:
    agents = load_agents([write("agent.yaml", *documents)], options)
    return agents.resolve([f"http://127.0.0.1:{8001 + n}" for n in range(len(agents.names))])


def problems_of(options: LocalOptions, *files: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_agents(files, options)
    return list(caught.value.problems)


def without_lines(problems: list[str]) -> list[str]:
    return [re.sub(r" line \d+:", "", line) for line in problems]


def test_a_team_knows_each_other_by_the_urls_it_is_given() -> None:
    files = [write("a.yaml", COORDINATOR, TOOLS_SECRET), write("b.yaml", RESEARCHER)]
    agents = load_agents(files, OPTIONS)
    assert agents.names == ("coordinator", "researcher")
    coordinator, researcher = agents.resolve(["http://127.0.0.1:8001", "http://127.0.0.1:8002"])
    assert [(p.name, p.url, p.share_context) for p in coordinator.agents] == [
        ("researcher", "http://127.0.0.1:8002", True),
        ("counsel", "http://127.0.0.1:9002", False),
        ("outside", "https://agents.example.com", False),
    ]
    assert researcher.agents[0].url == "http://127.0.0.1:8001"


MODEL = "{model: {name: m, endpoint: 'http://m'}}"


def scripts_of(script: str, asked: str | None = None, own: str = MODEL) -> list[str | None]:
    """The scripts of agents a, b and c; c has one of its own."""
    of_c = "{container: {env: [{name: DEBUG_MOCK_RESPONSES, value: mine}]}}"
    options = LocalOptions({"DEBUG_MOCK_RESPONSES": script}, asked=asked)
    agents = loaded(options, agent("a", own), agent("b", own), agent("c", of_c))
    return [config.mock_responses for config in agents]


@pytest.mark.parametrize(
    ("script", "asked", "scripts"),
    [
        ('["{}", "Hi"]', None, ['["{}", "Hi"]', None, "mine"]),
        ('["{}", "Hi"]', "b", [None, '["{}", "Hi"]', "mine"]),
        ('["{}", "Hi"]', "nobody", ['["{}", "Hi"]', None, "mine"]),
        ("Hi", "b", [None, "Hi", "mine"]),
        ('{"content": "Hi"}', None, ['{"content": "Hi"}', None, "mine"]),
        ('{"a": ["{}", "Hi"], "b": "Yo"}', None, ['["{}","Hi"]', '["Yo"]', "mine"]),
        ('{"b": ["{}", "Hi"]}', None, [None, '["{}","Hi"]', "mine"]),
        ('{"a": ["x"], "b": ["y"], "of another file": []}', None, ['["x"]', '["y"]', "mine"]),
        ('{"a": [', None, ['{"a": [', None, "mine"]),
    ],
)
def test_a_script_in_the_environment_is_for_the_agent_that_is_asked(
    script: str, asked: str | None, scripts: list[str | None]
) -> None:
    assert scripts_of(script, asked) == scripts


def test_an_agent_without_a_script_or_a_model_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        scripts_of('["{}"]', own="{}")
    why = "is required, as DEBUG_MOCK_RESPONSES has no script for b: "
    (line, *_) = without_lines(list(caught.value.problems))
    assert line.startswith(f"agent.yaml: document 2 (b): spec.model: {why}")


def test_a_manifest_may_script_several_too() -> None:
    variable = '{name: DEBUG_MOCK_RESPONSES, value: \'{"a": 5, "b": ["x"]}\'}'
    shared = f"{{container: {{env: [{variable}]}}}}"
    agents = loaded(LocalOptions({}), agent("a", shared), agent("b", shared))
    assert [config.mock_responses for config in agents] == ["[5]", '["x"]']
    file = write("agent.yaml", agent("a", shared), agent("b", shared))
    assert [script for _, script in check_files([file]).scripts()] == ["[5]", '["x"]']


def test_the_headers_and_fallbacks_of_a_model_are_resolved() -> None:
    spec = """{model: {name: m, endpoint: "http://m/v1/", parameters: {temperature: "0.5"},
      timeouts: {total: 9s},
      headers: [{name: api-key, valueFrom: {secretKeyRef: {name: a, key: b}}}],
      fallbacks: [
        {name: n1, endpoint: "http://n", apiKey: {secretKeyRef: {name: c, key: d}}},
        {name: o, endpoint: "http://o?v=1", parameters: {maxTokens: 7}}]}}"""
    (config,) = loaded(LocalOptions({"A_B": "k1", "C_D": "k2"}), agent(spec=spec))
    model = config.model
    assert model is not None
    assert [read() for read in model.headers.values()] == ["k1"]
    first, second = model.fallbacks
    assert (first.name, first.endpoint) == ("n1", "http://n")
    assert first.api_key is not None
    assert first.api_key() == "k2"
    assert (first.temperature, first.timeouts.total, first.headers) == (0.5, 9.0, {})
    assert (second.endpoint, second.temperature, second.max_tokens) == ("http://o?v=1", None, 7)
    assert model.fallbacks[0].fallbacks == ()


def test_every_reference_is_followed() -> None:
    coordinator, _ = loaded(OPTIONS, COORDINATOR, RESEARCHER, TOOLS_SECRET)
    assert coordinator.definition.instructions == "Be careful."
    assert coordinator.examples == ("What is new?",)
    assert coordinator.model is not None
    assert coordinator.model.api_key is not None
    assert coordinator.model.api_key() == "k1"
    assert coordinator.model.endpoint == "https://models.example.com/v1"
    assert (coordinator.model.temperature, coordinator.model.max_tokens) == (0.2, 2000)
    assert coordinator.model.inputs == ("image",)
    assert coordinator.chat == ChatConfig("quote", "ignore", ("seed",), ("*",))
    (calculator,) = coordinator.tools
    assert calculator.url == "http://127.0.0.1:9001/mcp"
    assert calculator.headers["Authorization"]() == "Bearer t1"
    assert calculator.allow == ("*",)
    assert (calculator.overrides[0].read_only, calculator.overrides[0].timeout) == (False, 300)
    assert (coordinator.definition.settings.max_steps, coordinator.definition.deadline) == (7, 300)


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (
            (
                "model: {name: m, endpoint: http://m, fallbacks: "
                f"[{{name: n1, endpoint: http://n1, apiKey: {GONE}}}]}}"
            ),
            "model.fallbacks[0].apiKey",
        ),
        (
            (
                "model: {name: m, endpoint: http://m}, "
                f"tools: [{{name: files, command: [x], env: [{{name: T, valueFrom: {GONE}}}]}}]"
            ),
            "tools[0].env[0].valueFrom",
        ),
        (
            (
                "model: {name: m, endpoint: http://m}, "
                f"hooks: [{{at: afterStep, url: https://h, signingKey: {GONE}}}]"
            ),
            "hooks[0].signingKey",
        ),
    ],
)
def test_a_missing_key_is_told_with_its_place(spec: str, place: str) -> None:
    (line,) = without_lines(problems_of(OPTIONS, write("agent.yaml", agent(spec=f"{{{spec}}}"))))
    assert line == (
        f"agent.yaml: spec.{place}: key t of Secret gone is missing; "
        "set GONE_T, or give --secrets FILE"
    )


def test_a_command_gets_its_own_variables_and_not_those_of_the_container() -> None:
    spec = """
  model: {name: m, endpoint: "http://m"}
  container: {env: [{name: OURS, value: canary}]}
  tools:
  - name: files
    command: [files-server]
    env:
    - {name: ROOT, value: /srv}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: tools, key: token}}}
"""
    (one,) = loaded(OPTIONS, agent(spec=spec), TOOLS_SECRET)
    env = one.tools[0].env
    assert {n: v if isinstance(v, str) else v() for n, v in env.items()} == {
        "ROOT": "/srv",
        "TOKEN": "Bearer t1",
    }


def test_variables_of_the_container_hold_for_their_agent() -> None:
    coordinator, researcher = loaded(OPTIONS, COORDINATOR, RESEARCHER, TOOLS_SECRET)
    assert (coordinator.mock_responses, coordinator.mock_source) == (None, "")
    assert researcher.mock_responses == '["{}", "Found."]'
    assert researcher.mock_source == (
        "agent.yaml: document 2 (researcher): line 34: spec.container.env[0]: DEBUG_MOCK_RESPONSES"
    )
    assert researcher.public_url == "https://researcher.example.com"


def test_a_script_of_the_manifest_wins_over_that_of_the_process() -> None:
    empty = (
        "{container: {env: [{name: DEBUG_MOCK_RESPONSES}]}, model: {name: m, endpoint: http://m}}"
    )
    one, two, three = loaded(
        MOCKED, agent("one"), RESEARCHER.replace("coordinator", "one"), agent("three", empty)
    )
    assert one.mock_responses == '["{}", "Hi."]'
    assert two.mock_responses == '["{}", "Found."]'
    assert three.mock_responses is None


@pytest.mark.parametrize(("count", "url"), [(1, "https://agents.example.com"), (2, None)])
def test_public_url_of_the_process_is_that_of_its_only_agent(count: int, url: str | None) -> None:
    scripts = json.dumps({f"a{n}": "x" for n in range(count)})
    environ = {"DEBUG_MOCK_RESPONSES": scripts, "PUBLIC_URL": "https://agents.example.com/"}
    configs = loaded(LocalOptions(environ), *(agent(f"a{n}") for n in range(count)))
    assert {config.public_url for config in configs} == {url}


LOOSE_ENDS = """\
1 (coordinator): line 7: spec.instructionsFrom: key coordinator of ConfigMap prompts is missing; \
set PROMPTS_COORDINATOR, or give --secrets FILE
1 (coordinator): line 11: spec.model.apiKey: key api-key of Secret models is missing; \
set MODELS_API_KEY, or give --secrets FILE
1 (coordinator): line 16: spec.tools[0].serviceRef: Service calculator has no address here; \
give --service calculator=URL
1 (coordinator): line 17: spec.tools[0].headers[0].valueFrom: key token of Secret tools is \
missing; set TOOLS_TOKEN, or give --secrets FILE
1 (coordinator): line 20: spec.agents[0]: there is no Agent researcher here (namespace default); \
add its file, or give --service researcher=URL
1 (coordinator): line 21: spec.agents[1]: there is no Agent lawyer here (namespace legal); \
add its file, or give --service lawyer=URL
2 (broken): line 29: spec.container.env[0].valueFrom: key a.b of Secret keys is missing; \
set KEYS_A_B, or give --secrets FILE
2 (broken): line 29: spec.model: is required, unless DEBUG_MOCK_RESPONSES is set
"""


def test_every_loose_end_is_a_line() -> None:
    variable = "{name: A, valueFrom: {secretKeyRef: {name: keys, key: a.b}}}"
    broken = agent("broken", f"{{container: {{env: [{variable}]}}}}")
    lines = problems_of(LocalOptions(), write("agent.yaml", COORDINATOR, broken))
    assert "\n".join(lines).replace("agent.yaml: document ", "") + "\n" == LOOSE_ENDS


def test_all_files_are_looked_at_and_a_broken_agent_is_still_there_to_refer_to() -> None:
    referrer = write("a.yaml", agent("a", "{agents: [{name: b}]}"))
    broken = write("b.yaml", agent("b", "{budget: {cost: 1}}"))
    bad_service = LocalOptions(MOCKED.environ, services={"calc": "127.0.0.1:1"})
    lines = problems_of(bad_service, referrer, broken, Path("none.yaml"))
    assert [line.partition(" is not")[0].partition(" must be")[0] for line in lines] == [
        "b.yaml: line 4: spec.budget.cost:",
        "none.yaml: there is no such file",
        "--service calc: must start with http:// or https://",
    ]


PUBLIC_URL = "PUBLIC_URL must start with http:// or https://"
NO_KIND = "an object of another API names that in apiVersion"
KINDS = '"Agent", "ModelAPI", "MCPServer" or "AgentPool"'
BAD_URL = "env: [{name: PUBLIC_URL, value: a.example}]"
FROM_MAP = "envFrom: [{configMapRef: {name: c}}]"
CONFIG_MAP = "kind: ConfigMap\nmetadata: {name: c}\ndata: "


@pytest.mark.parametrize(
    ("documents", "line"),
    [
        ([TOOLS_SECRET], "there is no Agent in it"),
        (["apiVersion: apps/v1\nkind: Deployment\n"], "there is no Agent in it"),
        (["kind: Deployment\n"], f'kind: must be {KINDS} (got "Deployment"); {NO_KIND}'),
        (
            [agent(), "apiVersion: diptych.dev/v1alpha1\nkind: Agnt\n"],
            f'document 2: kind: must be {KINDS} (got "Agnt"); {NO_KIND}',
        ),
        (["kind: List\nitems: [1]\n"], "item 1: must be a mapping of fields"),
        (["spec: {}\n"], f"kind: is required; it must be {KINDS}"),
        (
            [agent(), agent()],
            (
                "document 2 (a): metadata.name: the Agent a stands already in agent.yaml: "
                "document 1 (a); rename or remove one"
            ),
        ),
        ([agent(spec=f"{{container: {{{BAD_URL}}}}}")], f"spec.container.env[0]: {PUBLIC_URL}"),
        (
            [
                agent(spec=f"{{container: {{{FROM_MAP}, {BAD_URL}}}}}"),
                f"{CONFIG_MAP} {{A: a, PUBLIC_URL: b}}\n",
            ],
            f"document 1 (a): spec.container.env[0]: {PUBLIC_URL}",
        ),
        (
            [
                agent(spec=f"{{container: {{{FROM_MAP}}}}}"),
                f"{CONFIG_MAP} {{PUBLIC_URL: a.example}}\n",
            ],
            f"document 1 (a): spec.container.envFrom: {PUBLIC_URL}",
        ),
        (
            [agent(), "kind: Secret\nmetadata: {name: a}\ndata: {k: '%'}\n"],
            "document 2 (a): Secret a: data.k: must be base64 of UTF-8 text",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line(documents: list[str], line: str) -> None:
    problems = without_lines(problems_of(MOCKED, write("agent.yaml", *documents)))
    assert problems == [f"agent.yaml: {line}"]


KUSTOMIZED = [
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: tools}\nspec: {}\n",
    agent(),
    "apiVersion: v1\nkind: Service\nmetadata: {name: tools}\n",
]


def test_objects_of_other_kinds_are_passed_over_with_a_note() -> None:
    file = write("agent.yaml", *KUSTOMIZED)
    notes = (
        "agent.yaml: document 1 (tools): a Deployment of apps/v1 is passed over",
        "agent.yaml: document 3 (tools): a Service of v1 is passed over",
    )
    loaded = load_agents([file], MOCKED)
    assert (loaded.names, loaded.notes) == (("a",), notes)
    checked = check_files([file])
    assert checked.notes == list(notes)
    assert all("tools" not in line for line in checked.problems)


def test_a_list_holds_what_it_lists() -> None:
    """As `kubectl get agents,services -o yaml` writes it."""
    both = ", ".join(json.dumps(yaml.safe_load(text)) for text in KUSTOMIZED[1:])
    file = write("agent.yaml", f"apiVersion: v1\nkind: List\nitems: [{both}]\n")
    loaded = load_agents([file], MOCKED)
    assert (loaded.names, loaded.notes) == (
        ("a",),
        ("agent.yaml: item 2: a Service of v1 is passed over",),
    )


def test_check_judges_as_a_cluster_would_and_follows_no_reference() -> None:
    file = write("agent.yaml", COORDINATOR, RESEARCHER)
    assert check_files([file]).problems == []
    no_model = "is required, unless DEBUG_MOCK_RESPONSES is set in container.env"
    assert check_files([write("agent.yaml", agent())]).problems == [
        f"agent.yaml: line 4: spec.model: {no_model}"
    ]
    assert check_files([]).problems == ["the command line: there is no Agent in it"]


@pytest.mark.parametrize(
    ("model", "environ", "expected"),
    [
        ("openai", {"OPENAI_API_KEY": "k"}, ("https://api.openai.com/v1", "k", {})),
        (
            "openai",
            {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://proxy/v1/"},
            ("http://proxy/v1", "k", {}),
        ),
        (
            'openai, endpoint: "http://gateway/v1"',
            {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://proxy"},
            ("http://gateway/v1", "k", {}),
        ),
        (
            "azure",
            {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://x.azure.com/"},
            ("https://x.azure.com/openai/v1", None, {"api-key": "k"}),
        ),
        ("ollama", {}, ("http://127.0.0.1:11434/v1", None, {})),
        (
            "groq, headers: [{name: Authorization, value: own}]",
            {"GROQ_API_KEY": "k"},
            ("https://api.groq.com/openai/v1", None, {"Authorization": "own"}),
        ),
    ],
)
def test_a_provider_implies_endpoint_and_key(
    model: str, environ: dict[str, str], expected: tuple[str, str | None, dict[str, str]]
) -> None:
    spec = f"{{model: {{name: m, provider: {model}}}}}"
    (config,) = loaded(LocalOptions(environ), agent(spec=spec))
    found = config.model
    assert found is not None
    headers = {name: read() for name, read in found.headers.items()}
    assert (found.endpoint, found.api_key and found.api_key(), headers) == expected


@pytest.mark.parametrize(
    ("provider", "problems"),
    [
        ("openai", ["spec.model.apiKey: openai needs a key; set OPENAI_API_KEY"]),
        (
            "azure",
            [
                "spec.model.apiKey: azure needs a key; set AZURE_OPENAI_API_KEY",
                "spec.model: azure needs its endpoint; set AZURE_OPENAI_ENDPOINT",
            ],
        ),
    ],
)
def test_a_provider_without_its_variables_names_them(provider: str, problems: list[str]) -> None:
    spec = f"{{model: {{name: m, provider: {provider}}}}}"
    found = without_lines(problems_of(LocalOptions(), write("agent.yaml", agent(spec=spec))))
    assert found == [f"agent.yaml: {line}" for line in problems]


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("provider: openai", ["apiKey"]),
        (f"provider: openai, apiKey: {REF}", []),
        ("provider: groq, headers: [{name: Authorization, value: x}]", []),
        ("provider: ollama", ["endpoint"]),
        ('provider: ollama, endpoint: "http://ollama.models:11434/v1"', []),
        ("provider: azure", ["endpoint", "apiKey"]),
    ],
)
def test_a_cluster_needs_what_a_laptop_has_around(model: str, fields: list[str]) -> None:
    spec = f"{{model: {{name: m, {model}}}}}"
    checked = check_files([write("agent.yaml", agent(spec=spec))])
    assert checked.problems == []
    notes = [note.split(": ")[2] for note in checked.notes]
    assert notes == [f"spec.model.{name}" for name in fields]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpt-5-mini", "name its provider too, such as openai:gpt-5-mini; "),
        ("ollamma:llama3.2", 'the provider must be one of .*did you mean "ollama"?'),
        ("groq:", "name a model of groq, such as groq:"),
    ],
)
def test_a_model_in_one_word_names_a_known_provider(text: str, message: str) -> None:
    assert provider_model("ollama:llama3.2:1b") == {"provider": "ollama", "name": "llama3.2:1b"}
    with pytest.raises(ConfigError, match=f'^model "{text}": {message}'):
        provider_model(text)


def test_a_library_gives_content_and_names_of_its_own() -> None:
    content = {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": "a"},
        "spec": {"loop": {"maxSteps": 500}},
    }
    place = SourceLocation("Agent", {("spec", "loop", "maxSteps"): "max_steps"})
    with pytest.raises(ConfigError, match=r"^max_steps: must be 100 or less \(got 500\)$"):
        config_from_content(content, place, MOCKED)


LOOP = {
    "max_steps": 7,
    "on_max_steps": "answer",
    "answer_mode": "direct",
    "max_calls_per_step": 3,
    "max_parallel_calls": 2,
    "max_retries": 9,
    "answer_repairs": 1,
    "memory_context_limit": 0,
    "deadline": 12.0,
}


def test_every_setting_of_runs_reaches_them() -> None:
    assert set(LOOP) == set(LoopSpec.model_fields)
    asked = {to_camel(name): value for name, value in LOOP.items()} | {"deadline": "12s"}
    model = "{name: m, endpoint: http://m, actionFormat: native}"
    sessions = "{whenBusy: reject, queueMode: all}"
    spec = f"{{loop: {json.dumps(asked)}, model: {model}, sessions: {sessions}}}"
    definition = loaded(LocalOptions(), agent(spec=spec))[0].definition
    loop = {name: value for name, value in LOOP.items() if name != "deadline"}
    settings = RunSettings(action_format="native", queue_mode="all")
    assert definition.settings == replace(settings, **loop)
    assert (definition.deadline, definition.when_busy) == (12, "reject")


def test_no_secret_is_shown_by_a_config() -> None:
    configs = loaded(OPTIONS, COORDINATOR, RESEARCHER, TOOLS_SECRET)
    assert "k1" not in repr(configs)
    assert "Bearer t1" not in repr(configs)


def test_a_program_that_is_not_here_is_a_note() -> None:
    tools = (
        "[{name: a, command: [no-such-program]}, {name: b, command: [sh]},"
        " {name: c, command: [x], env: [{name: PATH, value: /opt}]}]"
    )
    file = write("agent.yaml", agent(spec=f"{{tools: {tools}}}"))
    (note,) = check_files([file]).notes
    assert note.startswith(
        "agent.yaml: spec.tools[0].command: no program no-such-program here; in a cluster the image"
    )
