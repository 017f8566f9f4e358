"""The CRDs: what the pod's models say, bounded, and documented field by field."""

import gc
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
GENERATOR = runpy.run_path(str(ROOT / "crds" / "generate.py"))
CRD = yaml.safe_load((ROOT / "crds" / "diptych.dev_agents.yaml").read_text())
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]["properties"]


def walk(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*")


CRDS = {
    resource.kind: yaml.safe_load(resource.file.read_text(encoding="utf-8"))
    for resource in GENERATOR["RESOURCES"]
}


def everything() -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, crd in CRDS.items():
        [version] = crd["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        yield from walk(schema["spec"], f"{kind}.spec")
        yield from walk(schema["status"], f"{kind}.status")


EVERYTHING = [*everything()]


@pytest.fixture
def no_garbage() -> None:
    """Collect what other tests left: if that is done in `ast.parse`, and a finalizer of kopf's
    tasks logs something, CPython 3.11 fails ("AST constructor recursion depth mismatch")."""
    gc.collect()


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("resource", GENERATOR["RESOURCES"], ids=lambda one: one.kind)
def test_the_committed_crds_are_what_the_generator_makes(resource):
    assert GENERATOR["text"](resource) == resource.file.read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_garbage")
def test_the_schema_for_editors_is_fresh_and_knows_the_manifest():
    text = (ROOT / "crds" / "agent.schema.json").read_text(encoding="utf-8")
    assert text == GENERATOR["editor_text"]()
    schema = jsonschema.Draft7Validator(json.loads(text))
    full = ROOT / "tests" / "diptych" / "manifest" / "full_manifest.yaml"
    content = yaml.safe_load(full.read_text())
    assert list(schema.iter_errors(content)) == []
    kinds = yaml.safe_load_all(full.with_name("full_kinds.yaml").read_text())
    assert [list(schema.iter_errors(each)) for each in kinds] == [[]] * 5
    assert list(schema.iter_errors({**content, "kind": "AgentPool"})) != []
    content["spec"]["model"] = {"name": "m", "provider": "opnai", "temprature": "1"}
    content["spec"]["tools"] = [{"name": "a", "url": "http://a", "command": ["a"]}]
    wrong = {error.json_path for error in schema.iter_errors(content)}
    assert wrong == {"$.spec.model", "$.spec.model.provider", "$.spec.tools[0]"}


def test_every_field_is_documented():
    undocumented = [
        path
        for path, schema in EVERYTHING
        if not path.endswith(("[]", ".*")) and not schema.get("description")
    ]
    assert undocumented == []


def test_everything_has_a_bound():
    for path, schema in EVERYTHING:
        match schema.get("type"):
            case "string":
                assert {"maxLength", "enum", "format"} & schema.keys(), path
            case "array":
                assert "maxItems" in schema, path
            case "object" if "additionalProperties" in schema:
                assert "maxProperties" in schema, path


def test_it_is_structural():
    for path, schema in EVERYTHING:
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "oneOf", "title", "default", "const"} & schema.keys(), path


def test_no_key_can_be_written_into_a_manifest():
    assert set(SPEC["model"]["properties"]["apiKey"]["properties"]) == {"secretKeyRef"}
