# ruff: noqa: INP001 - a script, no package
"""Generates the Agent CRD from the manifest's models: `python crds/generate.py` writes it.

It writes the form of `agents.policy` into the schema of the chart's values, too, and the manifest's
JSON Schema for editors, which `diptych init` copies beside the manifest that it writes.

The pod's models (`diptych.manifest`) are the only source of the manifest's fields and rules.
So the API accepts what the pods of this version accept, and nothing else: a field that a later
version will support is not in the CRD. The status is defined here; only the operator writes it.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic.alias_generators import to_camel

from diptych.manifest import AgentManifest
from diptych.manifest.rules import CEL_RULES, StrictModel

Schema: TypeAlias = dict[str, Any]

FILE = Path(__file__).parent / "diptych.dev_agents.yaml"
CHART_FILE = FILE.parent.parent / "charts" / "diptych" / "files" / "crds" / FILE.name
VALUES_FILE = CHART_FILE.parents[2] / "values.schema.json"
EDITOR_FILE = FILE.parents[1] / "app/diptych/manifest/agent.schema.json"  # crds/ links to it
HEADER = "# Made by crds/generate.py of the models in app/diptych/manifest; change those.\n"

_PATTERN = re.compile(r"(size\(self\) > 0 && )?self\.matches\(r'([^']*)'\)( && .*)?")
_AT_LEAST_ONE = re.compile(r"has\(self\.\w+\)( \|\| has\(self\.\w+\))+")
_EXACTLY_ONE = re.compile(r".*\bhas\(self\..* == 1")
_HAS = re.compile(r"has\(self\.(\w+)\)")
_LEFT_OUT = {"title", "default", "additionalProperties", "since", "type_name"}


def _field(kind: str, description: str, **keys: object) -> Schema:
    return {"type": kind, **keys, "description": description}


_CONDITION: Schema = {
    "type": "object",
    "description": "One aspect of the agent's state.",
    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
    "properties": {
        "type": _field(
            "string",
            "Accepted: the manifest can be served. ResolvedRefs: all Agents and "
            "Services that it names exist and agree. Progressing: pods are being changed. "
            "Available: some pod can take work. Ready: all pods are of the newest revision and can "
            "take work. Degraded: something that the agent uses is missing. ToolsDrifted: tools "
            "are not as they were pinned; only Agents with pins have it. Drifted: others have "
            "added fields to the pods; there only while True. Reconciling, Stalled: as "
            "kstatus reads them; there only while True.",
            maxLength=64,
        ),
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
    },
}
STATUS: Schema = {
    "type": "object",
    "description": "The agent's state as the operator sees it; only the operator writes it.",
    "properties": {
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
        "replicas": _field("integer", "How many pods there are.", format="int32"),
        "pods": _field(
            "string", "How many pods can take work, of how many are wanted: 1/2.", maxLength=32
        ),
        "selector": _field(
            "string", "Selects the agent's pods; autoscalers use it.", maxLength=512
        ),
        "sessions": _field(
            "string",
            "The key under which its sessions are stored; another Agent of the name adopts them "
            "by it (spec.sessions.adopt).",
            maxLength=127,
        ),
        "url": _field("string", "The agent's URL inside the cluster.", maxLength=256),
        "schedules": {
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
                        "Whether a run was started then; how that run ended is the agent's to say.",
                        enum=["Starting", "Started", "Failed"],
                    ),
                    "next": _field("string", "The next time.", format="date-time"),
                },
            },
        },
        "conditions": {
            "type": "array",
            "maxItems": 16,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "description": "The agent's state, one aspect each.",
            "items": _CONDITION,
        },
    },
}
COLUMNS = [
    ("Model", "string", ".spec.model.name", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("Replicas", "string", ".status.pods", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Changed", "date", '.status.conditions[?(@.type=="Ready")].lastTransitionTime', 1),
    ("Endpoint", "string", ".spec.model.endpoint", 1),
    ("URL", "string", ".status.url", 1),
]
NAME_RULE = {
    "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
    "message": 'metadata.name must be lower-case letters, digits and "-", beginning with a letter, '
    "63 characters at most",
}


def crd() -> Schema:
    """Make the whole CustomResourceDefinition."""
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority}
            for name, kind, path, priority in COLUMNS
        ],
        "schema": {"openAPIV3Schema": _root()},
    }
    names = {
        "kind": "Agent",
        "listKind": "AgentList",
        "plural": "agents",
        "singular": "agent",
        "shortNames": ["dpa"],
        "categories": ["diptych"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "agents.diptych.dev", "labels": {"app.kubernetes.io/name": "diptych"}},
        "spec": {
            "group": "diptych.dev",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def text() -> str:
    """Return the text of the committed file."""
    return HEADER + yaml.dump(crd(), Dumper=_NoAliases, sort_keys=False, width=100)


def manifest_schema(document: Callable[[str, Schema], Schema]) -> Schema:
    """Make the structural schema of a whole manifest.

    `document` makes a field's documentation, as keys of its schema, of its text and JSON Schema.
    """
    whole = AgentManifest.model_json_schema()
    return _StructuralSchema(whole["$defs"], document).mapping(AgentManifest, whole)


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
    """Return the text of the manifest's JSON Schema for editors."""
    found = _plain(manifest_schema(_description), described=True)
    del found["properties"]["metadata"]["additionalProperties"]  # Kubernetes writes more into it
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Agent"}
    return json.dumps(head | found, indent=1, ensure_ascii=False) + "\n"


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


def _root() -> Schema:
    manifest = manifest_schema(_description)
    return {
        "type": "object",
        "description": manifest["description"],
        "required": ["spec"],
        CEL_RULES: [NAME_RULE],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": manifest["properties"]["spec"],
            "status": STATUS,
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
        yield given, f"needs {' or '.join(names)}"
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
    made = {FILE: text(), CHART_FILE: text(), VALUES_FILE: values_text()}
    made[EDITOR_FILE] = editor_text()
    for file, wanted in made.items():
        if "--check" not in sys.argv:
            file.write_text(wanted, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{file.name} is stale; run crds/generate.py")
