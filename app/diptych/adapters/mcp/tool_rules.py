"""What a manifest says about the tools of MCP servers: rules over plain values.

Not here: how a server is reached (`wire`, `stdio`), or kept (`session`).
"""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeVar

import mcp_types

from diptych.config.settings import OverrideConfig, ToolConfig
from diptych.loop.catalog import Tool

Word = TypeVar("Word")


def allows(server: ToolConfig, tool: str) -> bool:
    """Say whether the manifest lets a tool of this name be called."""
    return any(fnmatchcase(tool, glob) for glob in server.allow)


def timeout_of(server: ToolConfig, tool: str) -> float:
    """Give the seconds that one call of a tool may take."""
    said = _first_said(server, tool, lambda override: override.timeout)
    return server.timeout if said is None else said


def offers(server: ToolConfig, listed: Iterable[mcp_types.Tool]) -> tuple[Tool, ...]:
    """Make offers of what the server lists: the allowed tools, each name once."""
    named: dict[str, mcp_types.Tool] = {}
    for tool in listed:
        named.setdefault(tool.name, tool)
    return tuple(_offer(server, tool) for name, tool in named.items() if allows(server, name))


def _offer(server: ToolConfig, tool: mcp_types.Tool) -> Tool:
    hints = tool.annotations or mcp_types.ToolAnnotations()

    def decided(said: Callable[[OverrideConfig], bool | None], hint: bool | None = None) -> bool:
        word = _first_said(server, tool.name, said)
        return bool(hint if word is None else word)

    return Tool(
        server=server.name,
        name=tool.name,
        description=tool.description or tool.title or "",
        input_schema=tool.input_schema,
        read_only=decided(lambda override: override.read_only, hints.read_only_hint),
        idempotent=decided(lambda override: override.idempotent, hints.idempotent_hint),
        sequential=decided(lambda override: override.sequential),
        terminal=decided(lambda override: override.terminal),
    )


def _first_said(
    server: ToolConfig, tool: str, said: Callable[[OverrideConfig], Word | None]
) -> Word | None:
    for override in server.overrides:
        word = said(override)
        if word is not None and fnmatchcase(tool, override.tool):
            return word
    return None
