"""What a manifest says about the tools of MCP servers: rules over plain values."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeVar

import mcp_types

from diptych.core.catalog import Tool
from diptych.manifest.settings import OverrideConfig, ToolServerConfig
from diptych.policy.unmatched import is_glob

Value = TypeVar("Value")


def allows(server: ToolServerConfig, tool: str) -> bool:
    """Say whether the manifest allows calls of a tool of this name."""
    return any(fnmatchcase(tool, glob) for glob in server.allow)


def named_by(server: ToolServerConfig) -> tuple[str, ...] | None:
    """Give the names that `allow` has, if it names each tool; None if it has globs."""
    return None if any(map(is_glob, server.allow)) else tuple(server.allow)


def timeout_of(server: ToolServerConfig, tool: str) -> float:
    """Give the seconds that one call of a tool may take."""
    timeout = _first_override(server, tool, lambda override: override.timeout)
    return server.timeout if timeout is None else timeout


def catalog_tools(server: ToolServerConfig, listed: Iterable[mcp_types.Tool]) -> tuple[Tool, ...]:
    """Make catalog entries of the tools that a server lists: the allowed ones, each name once."""
    by_name: dict[str, mcp_types.Tool] = {}
    for tool in listed:
        by_name.setdefault(tool.name, tool)
    return tuple(
        _catalog_tool(server, tool) for name, tool in by_name.items() if allows(server, name)
    )


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
    """Give what the first override that matches the tool and sets the value says."""
    for override in server.overrides:
        value = read(override)
        if value is not None and fnmatchcase(tool, override.tool):
            return value
    return None
