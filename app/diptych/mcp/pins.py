"""Pins: a tool that is not as the manifest pinned it cannot be used.

A pin holds the SHA-256 of a tool's name, description and schema, as its server lists them. What a
server says of its annotations is not pinned; `overrides` of the manifest say that for sure.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence

import mcp_types

from diptych.core.catalog import Unavailable
from diptych.mcp.tool_limits import MAX_TOOLS, is_usable_name, told_names

_audit = logging.getLogger("diptych.audit")

CHANGED = "changed"
"""What the reason of an entry for changed tools begins with; the operator looks for it."""


def digest(tool: mcp_types.Tool) -> str | None:
    """Give `sha256:` and the digest of a tool; None if its schema cannot be written as JSON.

    It is that of `{"description", "inputSchema", "name"}` as JSON in UTF-8, with sorted keys and
    no blanks. A title stands for a description that is absent.
    """
    content = {
        "name": tool.name,
        "description": tool.description or tool.title or "",
        "inputSchema": tool.input_schema,
    }
    try:
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def digests(listed: Iterable[mcp_types.Tool]) -> dict[str, str]:
    """Give the digest of each tool that can be used, by its name; the first of a name counts."""
    found: dict[str, str] = {}
    for tool in listed:
        if len(found) == MAX_TOOLS:
            break
        if tool.name not in found and is_usable_name(tool.name) and (value := digest(tool)):
            found[tool.name] = value
    return found


def changed_tools(pins: Mapping[str, str], listed: Sequence[mcp_types.Tool]) -> dict[str, bool]:
    """Give the pinned tools that are not as they were pinned, and whether each is still listed."""
    first: dict[str, mcp_types.Tool] = {}
    for tool in listed:
        first.setdefault(tool.name, tool)
    return {
        name: name in first
        for name, pinned in pins.items()
        if name not in first or digest(first[name]) != pinned
    }


def changed_entry(server: str, changed: Mapping[str, bool]) -> tuple[Unavailable, ...]:
    """Say what has changed, as a run and `/ready` are told it."""
    if not changed:
        return ()
    names = tuple(name if is_listed else f"{name} (gone)" for name, is_listed in changed.items())
    reason = f"{CHANGED} since pinned: {told_names(names)}"
    return (Unavailable("tool", server, reason, tuple(changed)),)


def audit_changed(server: str, changed: Mapping[str, bool]) -> None:
    """Put it on the audit log that tools were refused."""
    line = {
        "subject": f"server:{server}",
        "outcome": "refused",
        "tools": list(changed),
        "why": f"{CHANGED} since pinned",
    }
    _audit.warning("%s", json.dumps(line, ensure_ascii=True))
