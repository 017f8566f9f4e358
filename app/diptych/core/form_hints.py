"""Fills the forms of calls in, for those tools and agents that a message names.

A small model copies a form such as `{"tool": "tool_name", …}` as it stands. Shown the one of the
tool that it was told to use, it uses that tool (docs/prompts.md).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from diptych.core.catalog import Catalog
from diptych.core.messages import JSON, JSONObject

MOST_FORMS = 3  # a message that names more of them is about them, or leaves the choice open
_READ = 4_000  # characters of a message
_BLANK = "..."
_BLANKS: Mapping[str, JSON] = {
    "integer": 0,
    "number": 0,
    "boolean": False,
    "array": [],
    "object": {},
    "null": None,
}


@dataclass(frozen=True, slots=True)
class FormHints:
    """The call forms of those tools and agents that a message names, as JSON texts."""

    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()


def form_hints(catalog: Catalog, message: str) -> FormHints:
    """Give the forms of what a message names, in any order; none if it names too many."""
    if not message:
        return FormHints()
    said = message[:_READ]
    tools = tuple(
        _text({"tool": name, "arguments": _arguments(tool.input_schema)})
        for name, tool in catalog.listed()
        if _names(said, name)
    )
    agents = tuple(
        _text({"agent": peer.name, "task": _BLANK})
        for peer in catalog.agents
        if _names(said, peer.name)
    )
    return FormHints(tools, agents) if len(tools) + len(agents) <= MOST_FORMS else FormHints()


def _names(said: str, name: str) -> bool:
    """Say whether a name stands in a text as a word of its own."""
    return name in said and bool(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", said))


def _arguments(schema: JSONObject) -> JSONObject:
    """Give the required arguments, each with a blank of its type."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {name: _blank(properties.get(name)) for name in required if isinstance(name, str)}


def _blank(schema: JSON) -> JSON:
    if not isinstance(schema, dict):
        return _BLANK
    options = schema.get("enum")
    if isinstance(options, list) and options:
        first: JSON = options[0]
        return first
    if "const" in schema:
        only: JSON = schema["const"]
        return only
    kind = schema.get("type")
    return _BLANKS.get(kind, _BLANK) if isinstance(kind, str) else _BLANK


def _text(form: JSONObject) -> str:
    return json.dumps(form, ensure_ascii=False)
