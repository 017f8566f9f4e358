"""Writes pins of tools into the text of a manifest, at the places that the YAML parser names.

Comments and order stay. The new text is read again: only the pins may have changed.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from diptych.core.errors import ConfigError
from diptych.manifest import KIND
from diptych.manifest.documents import field_node, parse_documents
from diptych.manifest.settings import NAMESPACE

Pins: TypeAlias = Mapping[tuple[str, str], Mapping[str, Mapping[str, str]]]
"""By namespace and name of an Agent and name of a tool server: the digest of each tool."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """A part of the text, and what stands there afterwards."""

    start: int
    end: int
    text: str


def with_pins(text: str, pins: Pins) -> str:
    """Return the text, which `parse_documents` has read, with the pins of some servers replaced.

    `check_written` says whether this worked.
    """
    edits = {edit.start: edit for edit in _edits(text, pins)}
    for _, edit in sorted(edits.items(), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def check_written(path: Path, before: str, after: str, pins: Pins) -> None:
    """Check that a text means the same as before, but for the pins. Raises `ConfigError`."""
    expected = [copy.deepcopy(d.content) for d in parse_documents(path, before)]
    for content in expected:
        for server, found in _servers(content, pins):
            if found or "pin" in server:
                server["pin"] = [{"tool": t, "digest": d} for t, d in found.items()]
    try:
        is_same = [d.content for d in parse_documents(path, after)] == expected
    except ConfigError:
        is_same = False
    if not is_same:
        raise ConfigError(
            f"{path}: cannot be changed without changing more than the pins, as with aliases; "
            "write them yourself"
        )


def pin_lines(pins: Mapping[str, str]) -> list[str]:
    """Write pins as the lines of a YAML list."""
    return [f"- {_flow({'tool': tool, 'digest': digest})}" for tool, digest in pins.items()]


def _servers(
    content: Mapping[str, Any], pins: Pins
) -> Iterator[tuple[dict[str, Any], Mapping[str, str]]]:
    metadata = content.get("metadata")
    if content.get("kind") != KIND or not isinstance(metadata, dict):
        return
    of_agent = pins.get((metadata.get("namespace", NAMESPACE), metadata.get("name", "")), {})
    for server in (content.get("spec") or {}).get("tools") or ():
        if server.get("name") in of_agent:
            yield server, of_agent[server["name"]]


def _edits(text: str, pins: Pins) -> Iterator[_Edit]:
    newline = "\r\n" if "\r\n" in text else "\n"
    for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
        if _scalar(document, "kind") != KIND:
            continue
        metadata, spec = field_node(document, "metadata"), field_node(document, "spec")
        agent = _scalar(metadata, "namespace") or NAMESPACE, _scalar(metadata, "name")
        tools = field_node(spec, "tools")
        of_agent = pins.get(agent, {})
        for server in tools.value if isinstance(tools, yaml.SequenceNode) else ():
            name = field_node(server, "name")
            if name is not None and name.value in of_agent:
                yield _edit(text, server, name, of_agent[name.value], newline)


def _edit(
    text: str, server: yaml.MappingNode, name: yaml.Node, pins: Mapping[str, str], newline: str
) -> _Edit:
    """Replace the value of `pin`, or add the field after the name."""
    entries = [{"tool": tool, "digest": digest} for tool, digest in pins.items()]
    old = field_node(server, "pin")
    if old is not None:
        end = _end(old)
        if isinstance(old, yaml.SequenceNode) and not old.flow_style:
            margin = newline + " " * old.start_mark.column
            lines = pin_lines(pins) or ["  []"]  # indented more than the field
            return _Edit(old.start_mark.index, end, margin.join(lines))
        return _Edit(old.start_mark.index, end, _flow(entries))
    if server.flow_style:
        return _Edit(name.end_mark.index, name.end_mark.index, f', "pin": {_flow(entries)}')
    line_end = text.find("\n", name.end_mark.index)
    at = len(text) if line_end < 0 else line_end - (newline == "\r\n")
    margin = newline + " " * server.start_mark.column
    return _Edit(at, at, margin + margin.join(["pin:", *pin_lines(pins)]) if pins else "")


def _end(node: yaml.Node) -> int:
    """Return the end of a node's text, before the comments and blank lines that follow."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _scalar(node: yaml.Node | None, name: str) -> str:
    value = field_node(node, name)
    return value.value if isinstance(value, yaml.ScalarNode) else ""


def _flow(value: object) -> str:
    """Write a value so that it stands in YAML and in JSON."""
    return json.dumps(value)
