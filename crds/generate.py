# ruff: noqa: INP001 - a script, no package
"""Generates the CRDs from the manifests' models: `python crds/generate.py` writes them.

It writes the form of `agents.policy` into the schema of the chart's values, too, and the manifests'
JSON Schema for editors, which `diptych init` copies beside the manifest that it writes.

The pod's models (`diptych.manifest`) are the only source of the manifests' fields and rules.
So the API accepts what the pods of this version accept, and nothing else: a field that a later
version will support is not in a CRD. The status is defined here; only the operator writes it.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic.alias_generators import to_camel

from diptych.manifest import (
    MANIFESTS,
    AgentManifest,
    AgentPoolManifest,
    Manifest,
    McpServerManifest,
    ModelApiManifest,
)
from diptych.manifest.metadata import MAX_SHARED_NAME
from diptych.manifest.rules import CEL_RULES, StrictModel, one_of

Schema: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).parent
CHART = FOLDER.parent / "charts" / "diptych"
VALUES_FILE = CHART / "values.schema.json"
EDITOR_FILE = FOLDER.parent / "app/diptych/manifest/agent.schema.json"  # crds/ links to it
HEADER = "# Made by crds/generate.py of the models in app/diptych/manifest; change those.\n"

_PATTERN = re.compile(r"(size\(self\) > 0 && )?self\.matches\(r'([^']*)'\)( && .*)?")
_AT_LEAST_ONE = re.compile(r"has\(self\.\w+\)( \|\| has\(self\.\w+\))+")
_EXACTLY_ONE = re.compile(r".*\bhas\(self\..* == 1")
_HAS = re.compile(r"has\(self\.(\w+)\)")
_LEFT_OUT = {"title", "default", "additionalProperties", "since", "type_name"}


def _field(kind: str, description: str, **keys: object) -> Schema:
    return {"type": kind, **keys, "description": description}


def _conditions(types: str) -> Schema:
    """Make the schema of a status' conditions; `types` says what each one means."""
    properties = {
        "type": _field("string", types, maxLength=64),
        "status": _field(
            "string", "Whether the condition holds.", enum=["True", "False", "Unknown"]
        ),
        "reason": _field("string", "Why, in one word.", maxLength=128),
        "message": _field("string", "Why, and what to do about it.", maxLength=4096),
        "observedGeneration": _field(
            "integer",
            "The generation of the manifest that the condition describes.",
            format="int64",
        ),
        "lastTransitionTime": _field("string", "When the status changed last.", format="date-time"),
    }
    condition = {
        "type": "object",
        "description": "One aspect of the object's state.",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": properties,
    }
    return {
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "description": "The object's state, one aspect each.",
        "items": condition,
    }


def _status(conditions: str, **properties: Schema) -> Schema:
    common = {
        "advice": _field(
            "string",
            "Whether it serves, what is wrong, and what to do about it. For people; programs read "
            "the conditions.",
            maxLength=2048,
        ),
        "observedGeneration": _field(
            "integer",
            "The generation of the manifest that the operator has applied.",
            format="int64",
        ),
    }
    return {
        "type": "object",
        "description": "The object's state as the operator sees it; only the operator writes it.",
        "properties": common | properties | {"conditions": _conditions(conditions)},
    }


def _listed(item: Schema, most: int, description: str) -> Schema:
    return {"type": "array", "maxItems": most, "items": item, "description": description}


_REPLICAS = {
    "replicas": _field("integer", "How many pods there are.", format="int32"),
    "pods": _field(
        "string", "How many pods can take work, of how many are wanted: 1/2.", maxLength=32
    ),
    "selector": _field("string", "Selects the pods; autoscalers use it.", maxLength=512),
}
_KSTATUS = "Reconciling, Stalled: as kstatus reads them; there only while True."
_AGENT_STATUS = _status(
    "Accepted: the manifest can be served. ResolvedRefs: all Agents, Services and shared objects "
    "that it names exist and agree. Progressing: pods are being changed. "
    "Available: some pod can take work. Ready: all pods are of the newest revision and can "
    "take work. Degraded: something that the agent uses is missing. ToolsDrifted: tools "
    "are not as they were pinned; only Agents with pins have it. Drifted: others have "
    f"added fields to the pods; there only while True. {_KSTATUS}",
    **_REPLICAS,
    sessions=_field(
        "string",
        "The key under which its sessions are stored; another Agent of the name adopts them "
        "by it (spec.sessions.adopt).",
        maxLength=127,
    ),
    url=_field("string", "The agent's URL inside the cluster.", maxLength=256),
    schedules={
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "description": "The schedules, as their CronJobs tell.",
        "items": {
            "type": "object",
            "description": "One schedule.",
            "required": ["name"],
            "properties": {
                "name": _field("string", "Its name.", maxLength=63),
                "last": _field("string", "The last time.", format="date-time"),
                "lastResult": _field(
                    "string",
                    "Whether a run was started then.",
                    enum=["Starting", "Started", "Failed"],
                ),
                "lastRun": _field("string", "The last run that has ended.", maxLength=300),
                "lastEnd": _field("string", "How it ended.", maxLength=300),
                "next": _field("string", "The next time.", format="date-time"),
            },
        },
    },
)
_MODEL_API_STATUS = _status(
    "Accepted: the manifest can be served. Ready: the endpoint answers, and takes the key. "
    f"{_KSTATUS}",
    url=_field(
        "string",
        "The URL inside the cluster, of the proxy or of the hosted server.",
        maxLength=256,
    ),
    **_REPLICAS,
    models=_listed(
        {"type": "string", "maxLength": 256}, 256, "The first of the models that it lists."
    ),
    modelCount=_field("integer", "How many models it lists.", format="int32"),
    agents=_field("integer", "How many Agents use it.", format="int32"),
)
_MCP_SERVER_STATUS = _status(
    "Accepted: the manifest can be served. Available: some pod can take calls. Verified: the "
    "operator has asked the server for its tools. Ready: all of these. ToolsDrifted: tools are "
    f"not as they were pinned. {_KSTATUS}",
    address={
        "type": "object",
        "description": "Where the server is.",
        "properties": {"url": _field("string", "The URL of its MCP endpoint.", maxLength=2048)},
    },
    **_REPLICAS,
    tools=_listed(
        {
            "type": "object",
            "properties": {
                "name": _field("string", "The tool's name at its server.", maxLength=256),
                "digest": _field(
                    "string", "The digest of its definition, as in a pin.", maxLength=71
                ),
            },
        },
        256,
        "The first of the server's tools.",
    ),
    toolCount=_field("integer", "How many tools it has.", format="int32"),
    serverInfo={
        "type": "object",
        "description": "What the server says of itself.",
        "properties": {
            "name": _field("string", "Its name.", maxLength=256),
            "version": _field("string", "Its version.", maxLength=256),
            "protocolVersion": _field("string", "The version of MCP.", maxLength=64),
        },
    },
    agents=_field("integer", "How many Agents use it.", format="int32"),
)
_POOL_STATUS = _status(
    "Accepted: the manifest can be served. Progressing: pods are being changed. Available: some "
    "pod can take work. Ready: all pods are of the newest revision and can take work. "
    f"{_KSTATUS}",
    **_REPLICAS,
    agents=_field("integer", "How many Agents run in it.", format="int32"),
    ports={
        "type": "object",
        "maxProperties": 1000,
        "additionalProperties": {"type": "integer", "format": "int32"},
        "description": "The number of each Agent's port; a number is given once and kept.",
    },
    url=_field("string", "The URL of the pool's door.", maxLength=256),
)

Column: TypeAlias = tuple[str, str, str, int]

_READY: Column = ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0)
_REASON: Column = ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1)
_AGE: Column = ("Age", "date", ".metadata.creationTimestamp", 0)
_AGENTS: Column = ("Agents", "integer", ".status.agents", 0)
_PODS: Column = ("Replicas", "string", ".status.pods", 0)


@dataclass(frozen=True)
class Resource:
    """One CustomResourceDefinition: its model, its names in the API and the rest of it.

    `columns` are name, type, path and priority; `scaled` is the field with the number of pods.
    """

    model: type[Manifest]
    kind: str
    short_name: str
    columns: tuple[Column, ...]
    status: Schema
    scaled: str = ""
    max_name: int = MAX_SHARED_NAME

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}s"

    @property
    def file(self) -> Path:
        return FOLDER / f"diptych.dev_{self.plural}.yaml"

    @property
    def name_rule(self) -> Schema:
        return {
            "rule": f"self.metadata.name.matches('^[a-z]([-a-z0-9]{{0,{self.max_name - 2}}}"
            "[a-z0-9])?$')",
            "message": 'metadata.name must be lower-case letters, digits and "-", beginning with a '
            f"letter, {self.max_name} characters at most",
        }


RESOURCES = (
    Resource(
        AgentManifest,
        "Agent",
        "dpa",
        (
            ("Model", "string", ".spec.model.name", 0),
            _READY,
            (*_REASON[:3], 0),
            _PODS,
            _AGE,
            ("Changed", "date", '.status.conditions[?(@.type=="Ready")].lastTransitionTime', 1),
            ("Endpoint", "string", ".spec.model.endpoint", 1),
            ("URL", "string", ".status.url", 1),
        ),
        _AGENT_STATUS,
        scaled=".spec.replicas",
        max_name=63,
    ),
    Resource(
        ModelApiManifest,
        "ModelAPI",
        "dpm",
        (
            _READY,
            ("Models", "integer", ".status.modelCount", 0),
            _AGENTS,
            _AGE,
            _REASON,
            (*_PODS[:3], 1),
            ("Endpoint", "string", ".spec.endpoint", 1),
        ),
        _MODEL_API_STATUS,
    ),
    Resource(
        McpServerManifest,
        "MCPServer",
        "dps",
        (
            _READY,
            ("URL", "string", ".status.address.url", 0),
            ("Tools", "integer", ".status.toolCount", 0),
            _AGE,
            _REASON,
            (*_PODS[:3], 1),
            (*_AGENTS[:3], 1),
        ),
        _MCP_SERVER_STATUS,
        scaled=".spec.runtime.replicas",
    ),
    Resource(
        AgentPoolManifest,
        "AgentPool",
        "dpp",
        (_READY, _AGENTS, _PODS, _AGE, _REASON, ("URL", "string", ".status.url", 1)),
        _POOL_STATUS,
        scaled=".spec.replicas",
    ),
)


def crd(resource: Resource) -> Schema:
    """Make a whole CustomResourceDefinition."""
    scale = {
        "specReplicasPath": resource.scaled,
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}, **({"scale": scale} if resource.scaled else {})},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority}
            for name, kind, path, priority in resource.columns
        ],
        "schema": {"openAPIV3Schema": _root(resource)},
    }
    names = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "shortNames": [resource.short_name],
        "categories": ["diptych"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.diptych.dev",
            "labels": {"app.kubernetes.io/name": "diptych"},
        },
        "spec": {
            "group": "diptych.dev",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def text(resource: Resource) -> str:
    """Return the text of a committed CRD."""
    return HEADER + yaml.dump(crd(resource), Dumper=_NoAliases, sort_keys=False, width=100)


def manifest_schema(
    document: Callable[[str, Schema], Schema], model: type[Manifest] = AgentManifest
) -> Schema:
    """Make the structural schema of a whole manifest.

    `document` makes a field's documentation, as keys of its schema, of its text and JSON Schema.
    """
    whole = model.model_json_schema()
    return _StructuralSchema(whole["$defs"], document).mapping(model, whole)


def values_text() -> str:
    """Return the text of the chart's values.schema.json, with the form of `agents.policy`."""
    values = json.loads(VALUES_FILE.read_text(encoding="utf-8"))
    values["properties"]["agents"]["properties"]["policy"] = policy_value()
    return json.dumps(values, indent=2) + "\n"


def policy_value() -> Schema:
    """Make the JSON Schema of the value `agents.policy`: that of `spec.policy`, but for `repeat`.

    The operator checks what only CEL can say of a field, such as the bounds of a duration.
    """
    spec = manifest_schema(lambda *_: {})["properties"]["spec"]
    found = _plain(spec["properties"]["policy"])
    del found["items"]["properties"]["repeat"]
    return {**found, "description": "Rules for the calls of all Agents, as those of spec.policy."}


def editor_text() -> str:
    """Return the text of the JSON Schema for editors, of manifests of any kind."""
    manifests = []
    for kind, model in MANIFESTS.items():
        found = _plain(manifest_schema(_description, model), described=True)
        # Kubernetes writes more into it.
        del found["properties"]["metadata"]["additionalProperties"]
        is_kind = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
        manifests.append({"if": is_kind, "then": found})
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Diptych",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {"kind": {"enum": [*MANIFESTS]}},
        "allOf": manifests,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def default_text(schema: Schema) -> str:
    """Write a field's default as a manifest has it; "" if it has none."""
    match schema.get("default"):
        case bool() as default:
            return str(default).lower()
        case float() as seconds if schema["type"] == "string":
            return f"{seconds / 3600:g}h" if seconds % 3600 == 0 else f"{seconds:g}s"
        case int() | str() as default:
            return str(default)
        case [_, *_] as entries:
            return json.dumps(entries)
        case _:
            return ""


def _root(resource: Resource) -> Schema:
    manifest = manifest_schema(_description, resource.model)
    return {
        "type": "object",
        "description": manifest["description"],
        "required": ["spec"],
        CEL_RULES: [resource.name_rule],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": manifest["properties"]["spec"],
            "status": resource.status,
        },
    }


def _description(text: str, schema: Schema) -> Schema:
    """Add a field's default to its description, unless that says it."""
    default = default_text(schema)
    is_told = not default or isinstance(schema["default"], bool | list)
    return {"description": text if is_told else f"{text} Default: {default}."}


def _plain(schema: Schema, *, described: bool = False) -> Schema:
    """Make plain JSON Schema of a part of a CRD's: a CEL rule that is a pattern becomes one."""
    found = {key: v for key, v in schema.items() if not key.startswith("x-") and key != "items"}
    if not described:
        found.pop("description", None)
    for rule in schema.get(CEL_RULES, ()):
        if pattern := _PATTERN.fullmatch(rule["rule"]):
            found["pattern"] = pattern[2]
            found |= {"minLength": 1} if pattern[1] else {}
        elif choice := _EXACTLY_ONE.fullmatch(rule["rule"]):
            names = _HAS.findall(choice[0])
            found["oneOf"] = [{"required": [name]} for name in names]
        elif _AT_LEAST_ONE.fullmatch(rule["rule"]):
            found["anyOf"] = [{"required": [name]} for name in _HAS.findall(rule["rule"])]
    if "items" in schema:
        found["items"] = _plain(schema["items"], described=described)
    if "properties" in schema:
        found["properties"] = {
            name: _plain(one, described=described) for name, one in schema["properties"].items()
        }
        found["additionalProperties"] = False
    return found


class _NoAliases(yaml.SafeDumper):
    """Writes YAML without anchors: a value in several places is repeated."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


class _StructuralSchema:
    """Rewrites a JSON Schema as the structural schema of a CRD, which has no references."""

    def __init__(self, definitions: Schema, document: Callable[[str, Schema], Schema]) -> None:
        self._definitions = definitions
        self._document = document
        self._models = {model.__name__: model for model in _models(StrictModel)}

    def schema(self, given: Schema) -> Schema:
        if "$ref" in given:
            name = given["$ref"].rpartition("/")[2]
            return self.mapping(self._models[name], self._definitions[name])
        found = {key: value for key, value in given.items() if key not in _LEFT_OUT}
        if "const" in found:
            found["enum"] = [found.pop("const")]
        if "items" in found:
            found["items"] = self.schema(found["items"])
        if isinstance(values := given.get("additionalProperties"), dict):
            found["additionalProperties"] = self.schema(values)
            found.pop("propertyNames", None)
        return found

    def mapping(self, model: type[StrictModel], given: Schema) -> Schema:
        """Make the schema of a model, with its documentation and rules."""
        texts = _field_texts(model)
        properties = {}
        for name, field in model.model_fields.items():
            wire_name = field.alias or to_camel(name)
            found = _without_null(given["properties"][wire_name])
            properties[wire_name] = self.schema(found)
            if name in texts:
                properties[wire_name] |= self._document(texts[name], found)
        rules = [{"rule": rule, "message": message} for rule, message in _rules(model)]
        return {
            "type": "object",
            "description": inspect.cleandoc(model.__doc__ or ""),
            **({"required": given["required"]} if "required" in given else {}),
            **({CEL_RULES: rules} if rules else {}),
            "properties": properties,
        }


def _without_null(schema: Schema) -> Schema:
    """Write an optional field as a field that may be left out: the API takes no null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return {key: value for key, value in schema.items() if key != "anyOf"} | choices[0]


def _models(base: type[StrictModel]) -> Iterator[type[StrictModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _rules(model: type[StrictModel]) -> Iterator[tuple[str, str]]:
    for names, needed, words in (
        (model.exactly_one_of, "== 1", "exactly"),
        (model.at_most_one_of, "<= 1", "only"),
    ):
        if names:
            given = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in names)
            yield f"{given} {needed}", f"needs {words} one of {', '.join(names)}"
    if names := model.at_least_one_of:
        given = " || ".join(f"has(self.{name})" for name in names)
        yield given, f"needs {one_of(names)}"
    for rule in model.rules:
        yield rule.cel, rule.message


def _field_texts(model: type[StrictModel]) -> dict[str, str]:
    """Read the text under each field in the source, its own and inherited ones."""
    texts: dict[str, str] = {}
    for owner in reversed([c for c in model.__mro__ if issubclass(c, StrictModel)]):
        match ast.parse(inspect.getsource(owner)).body:
            case [ast.ClassDef(body=body)]:
                texts |= dict(_texts(body))
    return texts


def _texts(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, following in pairwise(body):
        match field, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=text):
                yield name, " ".join(ast.literal_eval(text).split())


if __name__ == "__main__":
    made = {VALUES_FILE: values_text(), EDITOR_FILE: editor_text()}
    for one in RESOURCES:
        made[one.file] = made[CHART / "files" / "crds" / one.file.name] = text(one)
    for file, wanted in made.items():
        if "--check" not in sys.argv:
            file.write_text(wanted, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{file.name} is stale; run crds/generate.py")
