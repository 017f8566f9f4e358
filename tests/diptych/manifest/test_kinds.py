"""ModelAPI, MCPServer and AgentPool: their fields, mistakes, and Agents that refer to them."""

from pathlib import Path
from typing import Any

import pytest
from support.kind_mistakes import mistakes

from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION, MANIFESTS
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import LocalOptions, check_files, load_agents
from diptych.manifest.mcp_server import python_problem
from diptych.manifest.validation import validate_object

FULL = Path(__file__).with_name("full_kinds.yaml")


def content(kind: str, spec: Any, name: str = "a") -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(("kind", "spec", "line"), mistakes())
def test_a_mistake_is_one_line_that_names_field_and_fix(kind: str, spec: Any, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_object(MANIFESTS[kind], content(kind, spec), SourceLocation("f"))
    assert caught.value.problems == (f"f: {line}",)


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


def test_a_reference_that_is_nearly_one_of_the_files_gets_a_note(tmp_path: Path) -> None:
    check(
        tmp_path,
        "kind: ModelAPI\nmetadata: {name: house}\nspec: {endpoint: 'http://m/v1'}",
        "kind: MCPServer\nmetadata: {name: calc, namespace: tools}\nspec: {source: {remote: {url: 'http://t'}}}",
        "kind: Agent\nmetadata: {name: desk}\nspec:\n  model: {apiRef: {name: hose}, name: m}\n"
        "  tools: [{name: a, ref: {name: calc}}, {name: b, ref: {name: elsewhere}}]\n"
        "  agents: [{name: disk}, {url: 'http://a', as: far}]",
    )
    notes = [note.partition(": spec.")[2] for note in check_files([tmp_path / "f.yaml"]).notes]
    there = "in these files (namespace default); did you mean"
    assert notes == [
        f"model.apiRef: there is no ModelAPI hose {there} house?",
        f"tools[0].ref: there is no MCPServer calc {there} tools/calc?",
        f"agents[0]: there is no Agent disk {there} desk?",
    ]


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


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def f(a: int, b): ...", "line 1, column 15: b of f has no type; write b: str, or Any"),
        ("async def f(*, b): ...", "line 1, column 16: b of f has no type; write b: str, or Any"),
        ("def f(a: int): ...", None),
        ("def _f(a): ...", None),
        ("@typed\ndef f(a): ...", None),
        ("class A:\n    def f(self): ...", None),
    ],
)
def test_functions_of_python_need_types(code: str, problem: str | None) -> None:
    assert python_problem(code) == problem


def test_a_list_of_tools_that_the_server_allows_none_of_is_a_mistake(tmp_path: Path) -> None:
    [problem] = check(
        tmp_path,
        "kind: MCPServer\nmetadata: {name: b}\n"
        "spec: {source: {command: [a]}, tools: {allow: [add]}}",
        "kind: Agent\nmetadata: {name: c}\nspec: {model: {endpoint: 'http://a', name: m}, "
        "tools: [{name: b, ref: {name: b}, allow: [pay]}]}",
    )
    assert problem.endswith("spec.tools[0].allow: MCPServer b allows none of these; it allows add")


def test_to_refer_to_an_object_with_mistakes_is_no_mistake_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    head = f"apiVersion: {API_VERSION}\nkind: "
    file.write_text(
        f"{head}ModelAPI\nmetadata: {{name: a}}\nspec: {{}}\n---\n"
        f"{head}MCPServer\nmetadata: {{name: b}}\nspec: {{source: {{}}}}\n---\n"
        f"{head}Agent\nmetadata: {{name: c}}\n"
        "spec: {model: {apiRef: {name: a}}, tools: [{name: b, ref: {name: b}}]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_agents([file], LocalOptions())
    assert [line.partition(": ")[2][:10] for line in caught.value.problems] == [
        "document 1",
        "document 2",
    ]


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
