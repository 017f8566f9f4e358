"""ModelAPI, MCPServer and AgentPool: their fields, mistakes, and Agents that refer to them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION, MANIFESTS
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import check_files
from diptych.manifest.validation import validate_object

FULL = Path(__file__).with_name("full_kinds.yaml")
MISTAKES = """
ModelAPI: {models: [a]}
    spec: needs provider, endpoint or hosted
ModelAPI: {endpoint: "http://m", hosted: {engine: vllm, image: a}}
    spec: needs only one of hosted and an endpoint or provider
ModelAPI: {endpoint: "http://m", hosted: {engine: tgi, image: a}}
    spec.hosted.engine: must be "ollama", "vllm" or "llamacpp" (got "tgi")
ModelAPI: {endpoint: "http://m", models: ["gpt-5*"], default: gpt-5-mini}
    spec: default must stand in models, letter for letter
ModelAPI: {endpoint: "http://m", budget: {perDay: {tokens: 1}}, proxy: {}}
    spec: budget needs proxy, which counts, and redis, where its pods count together
ModelAPI: {endpoint: "http://m", budget: {perDay: {tokens: 1}}, redis: {serviceRef: {name: r}}}
    spec: budget needs proxy, which counts, and redis, where its pods count together
ModelAPI: {endpoint: "http://m", budget: {perDay: {cost: "1"}}, proxy: {}, redis: {serviceRef: {name: r}}}
    spec: budget.perDay.cost needs prices: input and output of a million tokens, by model
ModelAPI: {endpoint: "http://m", allowedNamespaces: {from: All}}
    spec: allowedNamespaces needs proxy: the key does not leave its namespace
ModelAPI: {endpoint: "http://m", model: [gpt]}
    spec.model: is not a known field (did you mean "models"?)
ModelAPI: {endpoint: "http://m", apiKey: sk-1}
    spec.apiKey: must be a mapping of fields; write apiKey: {secretKeyRef: {name: models, key: api-key}}
MCPServer: {source: {}}
    spec.source: needs exactly one of remote, containerImage, python, command
MCPServer: {source: {command: [a], python: "a = 1"}}
    spec.source: needs exactly one of remote, containerImage, python, command
MCPServer: {source: {command: [a], packages: [numpy]}}
    spec.source: packages belong to python; remove them, or give python
MCPServer: {source: {command: [" "]}}
    spec.source: command must begin with the name of a program
MCPServer: {source: {remote: {url: "http://t"}}, runtime: {}}
    spec: config and runtime are for a server that runs in the cluster, not for remote
MCPServer: {source: {command: [a]}, config: {arguments: [b]}}
    spec: config.arguments are for containerImage only; command has its own
MCPServer: {source: {containerImage: {ref: a}}, config: {storage: [{path: /a, source: {}}]}}
    spec.config.storage[0].source: needs exactly one of configMap, secret, emptyDir, persistentVolumeClaim
MCPServer: {source: {containerImage: {ref: a}}, runtime: {security: {runAsUser: 0}}}
    spec.runtime.security.runAsUser: must be 1 or more (got 0)
AgentPool: {replicas: 2}
    spec: replicas above 1 need redis: without it each pod knows its own sessions only
AgentPool: {maxAgents: 1001}
    spec.maxAgents: must be 1000 or less (got 1001)
AgentPool: {minAgents: 1}
    spec.minAgents: is not a known field (did you mean "maxAgents"?)
"""  # noqa: E501
"""A kind and its spec, and below it the line that says what is wrong."""


def content(kind: str, spec: Any, name: str = "a") -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("written", "line"),
    [*zip(*[iter(MISTAKES.strip().split("\n"))] * 2, strict=True)],
)
def test_a_mistake_is_one_line_that_names_field_and_fix(written: str, line: str) -> None:
    kind, _, spec = written.partition(": ")
    with pytest.raises(ConfigError) as caught:
        validate_object(MANIFESTS[kind], content(kind, yaml.safe_load(spec)), SourceLocation("f"))
    assert caught.value.problems == (f"f: {line.strip()}",)


@pytest.mark.parametrize("kind", ["ModelAPI", "MCPServer", "AgentPool"])
@pytest.mark.parametrize("name", ["a" * 58, "1a", "a-", "A"])
def test_a_name_leaves_room_for_the_names_of_what_is_made(kind: str, name: str) -> None:
    spec: dict[str, Any] = {
        "ModelAPI": {"endpoint": "http://m"},
        "MCPServer": {"source": {"command": ["a"]}},
        "AgentPool": {},
    }[kind]
    assert validate_object(MANIFESTS[kind], content(kind, spec, "a" * 57), SourceLocation("f"))
    with pytest.raises(ConfigError, match="57 characters at most"):
        validate_object(MANIFESTS[kind], content(kind, spec, name), SourceLocation("f"))


def check(tmp_path: Path, *documents: str) -> list[str]:
    """Return the problems of a file, without its name and lines."""
    file = tmp_path / "f.yaml"
    file.write_text("\n---\n".join(f"apiVersion: {API_VERSION}\n{text}" for text in documents))
    return [line.removeprefix(f"{file}: ") for line in check_files([file]).problems]


def test_every_field_is_taken_and_each_object_is_named() -> None:
    checked = check_files([FULL])
    assert (checked.problems, checked.notes) == ([], [])
    assert [(kind, name) for _, kind, name in checked.names] == [
        ("ModelAPI", "house"),
        ("ModelAPI", "spare"),
        ("MCPServer", "calc"),
        ("MCPServer", "far"),
        ("AgentPool", "default"),
    ]


def test_python_that_does_not_parse_is_named_with_line_and_column(tmp_path: Path) -> None:
    code = "    python: |\n      def add(a: int) -> int:\n          return a +\n"
    server = f"kind: MCPServer\nmetadata: {{name: a}}\nspec:\n  source:\n{code}"
    [problem] = check(tmp_path, server)
    assert problem == "line 6: spec.source.python: line 2, column 15: invalid syntax"


def test_pod_templates_of_servers_and_pools_are_checked(tmp_path: Path) -> None:
    template = "podTemplate: {spec: {nodeSelectr: {}}}"
    pool = f"kind: AgentPool\nmetadata: {{name: a}}\nspec: {{{template}}}"
    server = (
        f"kind: MCPServer\nmetadata: {{name: a}}\n"
        f"spec: {{source: {{command: [a]}}, runtime: {{{template}}}}}"
    )
    mistake = 'podTemplate.spec.nodeSelectr: is not a field of a Kubernetes PodSpec (did you mean "nodeSelector"?)'  # noqa: E501
    found = {line.partition(": spec.")[2] for line in check(tmp_path, pool, server)}
    assert found == {mistake, f"runtime.{mistake}"}


HOUSE = """\
kind: ModelAPI
metadata: {name: house, namespace: platform}
spec:
  endpoint: http://m
  models: [gpt-5-mini, "gpt-5*"]
  prices: {gpt-5: {input: "1", output: "2"}}
"""
CALC = """\
kind: MCPServer
metadata: {name: calc, namespace: platform}
spec: {source: {command: [calc]}}
"""


MODEL = "model: {endpoint: 'http://m', name: a}"
FOREIGN = "apiGroup: mcp.x-k8s.io, kind: MCPServer"


@pytest.mark.parametrize(
    ("namespace", "spec", "problem"),
    [
        ("platform", "model: {apiRef: {name: house}, name: gpt-5-nano}", ""),
        ("platform", "model: {apiRef: {name: other}}", ""),  # perhaps in the cluster
        (
            "platform",
            "model: {apiRef: {name: house}, name: gpt-4}",
            "spec.model.name: is no model of ModelAPI house, which has gpt-5-mini, gpt-5*",
        ),
        (
            "platform",
            "model: {apiRef: {name: house}}",
            "spec.model.name: is required: ModelAPI house has no default",
        ),
        (
            "team",
            "model: {apiRef: {name: house, namespace: platform}, name: gpt-5}",
            (
                "spec.model.apiRef: ModelAPI house of namespace platform does not allow namespace "
                "team; set its allowedNamespaces"
            ),
        ),
        (
            "platform",
            "model: {endpoint: 'http://m', name: a, fallbacks: [{apiRef: {name: house}, name: b}]}",
            (
                "spec.model.fallbacks[0].name: is no model of ModelAPI house, which has "
                "gpt-5-mini, gpt-5*"
            ),
        ),
        ("platform", "model: {apiRef: {name: house}, name: gpt-5}, budget: {cost: '1'}", ""),
        (
            "platform",
            "model: {apiRef: {name: house}, name: gpt-5-mini}, budget: {cost: '1'}",
            (
                "spec.budget: cost needs the prices of gpt-5-mini: give them in ModelAPI house, or "
                "as model.prices"
            ),
        ),
        (
            "team",
            f"{MODEL}, tools: [{{name: c, ref: {{name: calc, namespace: platform}}}}]",
            (
                "spec.tools[0].ref: MCPServer calc of namespace platform does not allow namespace "
                "team; set its allowedNamespaces"
            ),
        ),
        (
            "team",
            f"{MODEL}, tools: [{{name: c, ref: {{name: calc, namespace: platform, {FOREIGN}}}}}]",
            "",
        ),
    ],
)
def test_an_agent_is_checked_against_the_objects_beside_it(
    tmp_path: Path, namespace: str, spec: str, problem: str
) -> None:
    agent = f"kind: Agent\nmetadata: {{name: a, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    found = check(tmp_path, HOUSE, CALC, agent)
    assert [line.split(": ", 2)[2] for line in found] == [problem] * bool(problem)


def test_two_objects_of_a_kind_need_two_names(tmp_path: Path) -> None:
    agent = "kind: Agent\nmetadata: {name: house, namespace: platform}\nspec: {model: {endpoint: 'http://m', name: m}}"  # noqa: E501
    assert check(tmp_path, HOUSE, agent) == []
    [line] = check(tmp_path, HOUSE, HOUSE)
    assert "the ModelAPI house stands already in" in line


def test_a_server_of_another_group_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(f"apiVersion: mcp.x-k8s.io/v1beta1\nkind: MCPServer\n---\n{FULL.read_text()}")
    assert check_files([file]).problems == []
