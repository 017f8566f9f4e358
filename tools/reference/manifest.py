# ruff: noqa: INP001 - a script, no package
"""Generates docs/reference/manifest.md: every field of the manifests, and the pod's variables.

`python tools/reference/manifest.py` writes it from the manifest's models, by way of the schema that
the CRD has (`crds/generate.py`). A field that came after version 0.1 says so in its model:
`Field(json_schema_extra={"since": "0.2"})`.
"""

import json
import runpy
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from diptych.manifest import KIND, MANIFESTS
from diptych.manifest.documents import FieldPath
from diptych.manifest.environment import (
    AGENT_VARIABLES,
    NAMED_VARIABLES,
    PROCESS_VARIABLES,
    EnvironmentVariable,
)
from diptych.manifest.fields import FORMAT_MESSAGE
from diptych.manifest.rules import CEL_RULES

Schema: TypeAlias = dict[str, Any]

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "reference" / "manifest.md"
WIDTH = 120
FIRST_VERSION = "0.1"

INTRODUCTION = """\
# The manifests, field by field

<!-- tools/reference/manifest.py writes this from the models in app/diptych/manifest. -->

How the fields work together is in [agent.md](../spec/agent.md) and [kinds.md](../spec/kinds.md).
`kubectl explain agents.diptych.dev.spec` shows the same texts. The fields of an Agent come first;
those of [ModelAPI](#modelapi), [MCPServer](#mcpserver) and [AgentPool](#agentpool) begin with the
kind. A field that is not listed is an error, and so is a value out of bounds:
`diptych check FILE` names the file, the field and the fix. The Kubernetes API checks the same
bounds and rules.

A duration is a string such as `500ms`, `30s` or `1m30s`. `[]` in a path means each entry of a list.
A field that is not required may be left out; then its default holds, if it has one.
"""
ENVIRONMENT = """\
## Variables of the pod

These hold with and without a manifest:
"""
WITHOUT_MANIFEST = """\
These replace a manifest, for a plain container without one; the same rules check them. `<name>` is
a name in `MCP_SERVERS` or `PEER_AGENTS`, in upper case and with `-` as `_`.
"""


def text() -> str:
    """Return the text of the committed file."""
    generator = runpy.run_path(str(ROOT / "crds" / "generate.py"))

    def document(description: str, schema: Schema) -> Schema:
        return {
            "description": description,
            "default": generator["default_text"](schema),
            "since": schema.get("since", FIRST_VERSION),
            "type_name": schema.get("type_name", ""),
        }

    roots = {
        "" if kind == KIND else kind: generator["manifest_schema"](document, model)
        for kind, model in MANIFESTS.items()
    }
    environment = [
        ENVIRONMENT,
        _variables(PROCESS_VARIABLES),
        WITHOUT_MANIFEST,
        _variables((*AGENT_VARIABLES, *NAMED_VARIABLES)),
    ]
    return "\n".join([INTRODUCTION, *_Manifests(roots).sections(), *environment])


class _Manifests:
    """The sections of the page: one for each mapping, or for the first of several that are alike.

    `_paths` are the mappings' paths by their fields, written as JSON.
    """

    def __init__(self, roots: Mapping[str, Schema]) -> None:
        self._paths: dict[str, str] = {}
        self._mappings: dict[str, Schema] = {}
        for kind, schema in roots.items():
            self._collect(kind, schema)

    def sections(self) -> Iterator[str]:
        for path, schema in self._mappings.items():
            yield f"## {f'`{path}`' if path else 'Agent'}\n"
            yield _wrap(schema["description"]) + "\n"
            if rules := [rule["message"] for rule in schema.get(CEL_RULES, ())]:
                yield _wrap(f"Rules: {'; '.join(rules)}.") + "\n"
            yield "\n".join(self._entries(path, schema)) + "\n"

    def _collect(self, path: str, schema: Schema) -> None:
        if self._paths.setdefault(_fields_key(schema), path) == path:
            self._mappings[path] = schema
            for name, field in schema["properties"].items():
                inner, inner_path = _mapping_in(field, _join(path, name))
                if inner:
                    self._collect(inner_path, inner)

    def _entries(self, path: str, schema: Schema) -> Iterator[str]:
        for name, field in schema["properties"].items():
            if "description" in field:
                is_required = name in schema.get("required", ())
                yield self._entry(_join(path, name), field, is_required=is_required)

    def _entry(self, path: str, field: Schema, *, is_required: bool) -> str:
        """Write one field: path, type, bounds, default, version, meaning and rules."""
        default = field["default"]
        facts = [
            field["type_name"] or _type(field),
            *_bounds(field),
            *(["required"] if is_required else [f"default `{default}`"] if default else []),
            f"since {field['since']}",
        ]
        inner, _ = _mapping_in(field, path)
        parts = [f"`{path}`: {', '.join(facts)}.", field["description"]]
        parts += [f"Rule: {rule}." for rule in _field_rules(field)]
        if inner:
            parts.append(f"[Its fields](#{_anchor(self._paths[_fields_key(inner)])}).")
        return _wrap(" ".join(parts), first="- ", rest="  ")


def _fields_key(schema: Schema) -> str:
    return json.dumps(schema["properties"], sort_keys=True)


def _field_rules(field: Schema) -> Iterator[str]:
    """List the rules of a field, but not those of a mapping, which has a section of its own."""
    if "properties" in field:
        return
    for key in field.get("x-kubernetes-list-map-keys", ()):
        yield f"no two entries have the same {key}"
    messages = (rule["message"] for rule in field.get(CEL_RULES, ()))
    yield from (message for message in messages if message != FORMAT_MESSAGE)
    for part in ("items", "additionalProperties"):
        if isinstance(inner := field.get(part), dict):
            yield from _field_rules(inner)


def _type(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if schema.get("type") == "array":
        return f"list of {_plural(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"mapping of strings to {_plural(schema['additionalProperties'])}"
    if schema.get("type") == "object":
        return "mapping"
    return str(schema.get("type", "any value"))


def _plural(schema: Schema) -> str:
    return " or ".join(f"{word}s" for word in _type(schema).split(" or "))


def _bounds(schema: Schema) -> Iterator[str]:
    if values := schema.get("enum"):
        yield "one of " + ", ".join(f"`{value}`" for value in values)
    if "minimum" in schema:
        yield f"from {schema['minimum']} to {schema['maximum']}"
    for least, most, what in (
        ("minLength", "maxLength", "characters"),
        ("minItems", "maxItems", "entries"),
        ("minProperties", "maxProperties", "entries"),
    ):
        if most in schema and not schema.get("type_name"):
            at_least = f"{schema[least]} to " if least in schema else "at most "
            yield f"{at_least}{schema[most]} {what}"
    if "pattern" in schema:
        yield f"pattern `{schema['pattern']}`"


def _mapping_in(field: Schema, path: str) -> tuple[Schema | None, str]:
    """Return the mapping that a field or each of its entries is, and its path."""
    if "properties" in field:
        return field, path
    items = field.get("items", {})
    return (items, f"{path}[]") if "properties" in items else (None, path)


def _variables(variables: tuple[EnvironmentVariable, ...]) -> str:
    rows = [
        f"| `{v.name}` | {_code(_dotted(v.path))} | {_code(v.default)} | {v.meaning} |"
        for v in variables
    ]
    head = "| variable | field | default | meaning |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _dotted(path: FieldPath) -> str:
    return ".".join(str(part) for part in path).replace(".0", "[]")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _anchor(path: str) -> str:
    """Return the anchor of the section with this heading."""
    return "".join(c for c in path.lower() if c.isalnum() or c in "-_")


def _wrap(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    if "--check" not in sys.argv:
        FILE.write_text(text(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text():
        sys.exit(f"{FILE.name} is stale; run tools/reference/manifest.py")
