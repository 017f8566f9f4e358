"""Decides which listed tools of a server are usable, and makes catalog entries of them.

Lists are untrusted, and end up in a prompt. A tool over a limit is left out and reported; only a
long description is truncated. A tool that differs from its pin is unusable. The manifest's settings
override the server's.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import TypeVar

import mcp_types

from diptych.core.catalog import SEPARATOR, Tool, Unavailable
from diptych.core.text import one_line, several_lines, some
from diptych.manifest.settings import OverrideConfig, ToolServerConfig
from diptych.net.redaction import SECRETS
from diptych.policy.unmatched import is_glob

MAX_TOOLS = 256
MAX_DESCRIPTION_CHARS = 4_096
MAX_SCHEMA_CHARS = 64 * 1024  # of one tool, as JSON
MAX_CATALOG_CHARS = 512 * 1024  # of all schemas and descriptions of a server

NAME_RULE = f'a name is 1 to 64 of A-Z, a-z, 0-9, ".", "-" and "_", without "{SEPARATOR}"'
READ_RESOURCE = "read_resource"
RESOURCE_READER = mcp_types.Tool(
    name=READ_RESOURCE,
    description="Read a resource of this server by its URI, such as one that a result links to.",
    input_schema={
        "type": "object",
        "properties": {"uri": {"type": "string"}},
        "required": ["uri"],
    },
    annotations=mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
"""Offered for servers that have resources, like the readers of Claude Code and goose."""

CHANGED = "changed"
"""The first word of the reason for changed tools, which the operator looks for."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # MCP, tools, "Tool Names"
_audit = logging.getLogger("diptych.audit")
Value = TypeVar("Value")


# The manifest's settings


def allows(server: ToolServerConfig, tool: str) -> bool:
    """Whether the manifest allows calls of this tool."""
    return any(fnmatchcase(tool, glob) for glob in server.allow)


def named_by(server: ToolServerConfig) -> tuple[str, ...] | None:
    """Return the names in `allow`; None if it has globs."""
    return None if any(map(is_glob, server.allow)) else tuple(server.allow)


def timeout_of(server: ToolServerConfig, tool: str) -> float:
    """Return the timeout of a tool's calls, in seconds."""
    timeout = _first_override(server, tool, lambda override: override.timeout)
    return server.timeout if timeout is None else timeout


def catalog_tools(server: ToolServerConfig, listed: Iterable[mcp_types.Tool]) -> tuple[Tool, ...]:
    """Return catalog entries for the allowed tools."""
    return tuple(_catalog_tool(server, tool) for tool in listed if allows(server, tool.name))


def _catalog_tool(server: ToolServerConfig, tool: mcp_types.Tool) -> Tool:
    hints = tool.annotations or mcp_types.ToolAnnotations()

    def flag(read: Callable[[OverrideConfig], bool | None], hint: bool | None = None) -> bool:
        value = _first_override(server, tool.name, read)
        return bool(hint if value is None else value)

    return Tool(
        server=server.name,
        name=tool.name,
        description=tool.description or tool.title or "",
        input_schema=tool.input_schema,
        read_only=flag(lambda override: override.read_only, hints.read_only_hint),
        idempotent=flag(lambda override: override.idempotent, hints.idempotent_hint),
        sequential=flag(lambda override: override.sequential),
        terminal=flag(lambda override: override.terminal),
        destructive=hints.destructive_hint,
        open_world=hints.open_world_hint,
    )


def _first_override(
    server: ToolServerConfig, tool: str, read: Callable[[OverrideConfig], Value | None]
) -> Value | None:
    """Return the value of the first override that matches the tool and sets it."""
    for override in server.overrides:
        value = read(override)
        if value is not None and fnmatchcase(tool, override.tool):
            return value
    return None


# Limits


@dataclass(frozen=True, slots=True)
class UsableTools:
    """The usable tools, and the names of the excluded ones by reason."""

    tools: tuple[mcp_types.Tool, ...]
    left_out: Mapping[str, Sequence[str]]

    def unavailable(self, server: str) -> tuple[Unavailable, ...]:
        """Return one entry per reason, as shown in runs and `/ready`."""
        return tuple(
            Unavailable("tool", server, f"{len(names)} left out, {reason}: {some(names)}")
            for reason, names in self.left_out.items()
        )


def is_usable_name(name: str) -> bool:
    """Whether a tool may have this name; `__` is reserved to separate server and tool."""
    return _NAME.fullmatch(name) is not None and SEPARATOR not in name


def usable_tools(
    listed: Iterable[mcp_types.Tool], invalid: Mapping[str, str] | None = None
) -> UsableTools:
    """Select the tools within the limits.

    `invalid` maps the names of tools that are not valid MCP to the location of the mistake.
    """
    usable: list[mcp_types.Tool] = []
    left_out: dict[str, list[str]] = {}

    def leave_out(name: str, reason: str) -> None:
        left_out.setdefault(reason, []).append(one_line(SECRETS.redact(name), 64))

    for name, place in (invalid or {}).items():
        leave_out(name, f"as not valid MCP{place and f', at {place}'}")
    size = 0
    for tool in listed:
        description = several_lines(
            SECRETS.redact(tool.description or tool.title or ""), MAX_DESCRIPTION_CHARS
        )
        schema_size = _size(tool)
        size += schema_size + len(description)
        problem = _problem(tool, schema_size)
        if problem is None and (len(usable) == MAX_TOOLS or size > MAX_CATALOG_CHARS):
            problem = "as the server lists too much"
        if problem is None:
            schema = SECRETS.redact_value(tool.input_schema)
            shown = {"description": description, "input_schema": schema}
            usable.append(tool.model_copy(update=shown))
        else:
            leave_out(tool.name, problem)
    return UsableTools(tuple(usable), left_out)


def _problem(tool: mcp_types.Tool, schema_size: int) -> str | None:
    if not is_usable_name(tool.name):
        return f"as {NAME_RULE}"
    if SECRETS.redact(tool.name) != tool.name:
        return "as its name contains a secret"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "as they can only be called as tasks, which is not supported"
    if schema_size > MAX_SCHEMA_CHARS:
        return f"as its schema has more than {MAX_SCHEMA_CHARS} characters"
    return None


def _size(tool: mcp_types.Tool) -> int:
    try:
        return len(json.dumps(tool.input_schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return MAX_SCHEMA_CHARS + 1


# Pins


def digest(tool: mcp_types.Tool) -> str | None:
    """Return a tool's digest as `sha256:…`; None if its schema cannot be encoded as JSON.

    Hashes `{"description", "inputSchema", "name"}` as JSON in UTF-8, with sorted keys and without
    blanks. A missing description is replaced by the title. Annotations are not pinned: the
    manifest's `overrides` set them.
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
    """Return the digests of the usable tools by name."""
    found = ((t.name, value) for t in listed if is_usable_name(t.name) and (value := digest(t)))
    return dict(islice(found, MAX_TOOLS))


def changed_tools(pins: Mapping[str, str], listed: Iterable[mcp_types.Tool]) -> dict[str, bool]:
    """Return the pinned tools that have changed, and whether each is still listed."""
    by_name = {tool.name: tool for tool in listed}
    return {
        name: name in by_name
        for name, pinned in pins.items()
        if name not in by_name or digest(by_name[name]) != pinned
    }


def changed_entry(server: str, changed: Mapping[str, bool]) -> tuple[Unavailable, ...]:
    """Return the entry for changed tools, as shown in runs and `/ready`."""
    if not changed:
        return ()
    names = [name if is_listed else f"{name} (gone)" for name, is_listed in changed.items()]
    reason = f"{CHANGED} since pinned: {some(names)}"
    return (Unavailable("tool", server, reason, tuple(changed)),)


def audit_changed(server: str, changed: Mapping[str, bool]) -> None:
    """Write refused tools to the audit log."""
    line = {
        "subject": f"server:{server}",
        "outcome": "refused",
        "tools": list(changed),
        "why": f"{CHANGED} since pinned",
    }
    _audit.warning("%s", json.dumps(line, ensure_ascii=True))
