"""Where a manifest comes from, so that an error line names what its reader can change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

FieldPath: TypeAlias = tuple[str | int, ...]
"""The path of a field: names of fields, and indexes of lists."""

_MAX_NAME = 64  # characters


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The source of a manifest: a file, a document of a file, or environment variables.

    `variables` says which environment variable a field was made from; the longest path counts.
    """

    source: str
    variables: Mapping[FieldPath, str] = field(default_factory=dict)

    def describe(self, path: FieldPath) -> str:
        """Name a field: `agent.yaml: spec.tools[0].url`, or `MCP_SERVER_CALCULATOR_URL`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.variables:
                return self.variables[path[:length]]
        return ": ".join(part for part in (self.source, dotted_path(path)) if part)


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
