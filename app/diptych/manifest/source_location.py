"""Where a manifest comes from, so that an error line names what its reader can change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

FieldPath: TypeAlias = tuple[str | int, ...]
"""The path of a field: names of fields, and indexes of lists."""

_MAX_NAME = 64  # characters


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The source of a manifest: a file, a document of a file, or environment variables.

    `variables` says which environment variable a field was made from; the longest path counts.
    `node` is the document, if it was read from a file.
    """

    source: str
    variables: Mapping[FieldPath, str] = field(default_factory=dict)
    node: yaml.Node | None = field(default=None, compare=False, repr=False)

    def describe(self, path: FieldPath) -> str:
        """Name a field: `agent.yaml: spec.tools[0].url`, or `MCP_SERVER_CALCULATOR_URL`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.variables:
                return self.variables[path[:length]]
        return ": ".join(part for part in (self.source, dotted_path(path)) if part)

    def locate(self, path: FieldPath) -> str:
        """Name a field and its line: `agent.yaml: line 9: spec.tools[0].url`."""
        if self.node is None:
            return self.describe(path)
        line = node_at(self.node, path).start_mark.line + 1
        return f"{self.source}: line {line}: {dotted_path(path)}"


def node_at(node: yaml.Node, path: FieldPath) -> yaml.Node:
    """Find a field's node, or that of the innermost field around it that is there."""
    for part in path:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == part), node)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part] if part < len(node.value) else node
    return node


def dotted_path(path: FieldPath) -> str:
    """Write a path as readers of manifests do: `spec.tools[0].url`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            is_plain = part.replace("_", "").replace("-", "").isalnum() and len(part) <= _MAX_NAME
            text += f".{part}" if is_plain else f".{json.dumps(part[:_MAX_NAME])}"
    return text.removeprefix(".")
