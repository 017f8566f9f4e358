"""Which MCP servers there are, and what the manifest says about their tools: plain values.

Not here: how a server is reached (`mcp_wire`, `mcp_stdio`), or kept (`mcp_session`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import mcp_types

from diptych.errors import ConfigError
from diptych.offers import Tool
from diptych.ports import Secret

Word = TypeVar("Word")

ToolFunction = Callable[..., Any]
"""A plain typed Python function, sync or async, that is offered as a tool."""


@dataclass(frozen=True, slots=True)
class Override:
    """What a manifest says of the tools whose names match the glob `tool`; None says nothing.

    Of several overrides that match, the first that says something decides. `timeout` is in seconds.
    """

    tool: str
    read_only: bool | None = None
    idempotent: bool | None = None
    sequential: bool | None = None
    terminal: bool | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class ToolServer:
    """One MCP server: exactly one of `url`, `command` (stdio) and `functions` (in this process).

    `allow` holds globs of tool names. `headers` and `env` are read where they are used: headers at
    every request, the environment when the command is started. `timeout` is in seconds and holds
    for one call, whatever it waits for. Raises `ConfigError`.
    """

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()
    functions: tuple[ToolFunction, ...] = ()
    env: Mapping[str, Secret | str] = field(default_factory=dict)
    headers: Mapping[str, Secret] = field(default_factory=dict)
    allow: tuple[str, ...] = ("*",)
    timeout: float = 60.0
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        if sum(map(bool, (self.url, self.command, self.functions))) != 1:
            raise ConfigError(
                f"tool server {self.name}: give exactly one of url, command and functions"
            )
        if self.timeout <= 0:
            raise ConfigError(f"tool server {self.name}: timeout must be more than 0 seconds")

    def allows(self, tool: str) -> bool:
        return any(fnmatchcase(tool, glob) for glob in self.allow)

    def timeout_of(self, tool: str) -> float:
        said = self._first_said(tool, lambda override: override.timeout)
        return self.timeout if said is None else said

    def offers(self, listed: Iterable[mcp_types.Tool]) -> tuple[Tool, ...]:
        """Make offers of what the server lists: the allowed tools, each name once."""
        named: dict[str, mcp_types.Tool] = {}
        for tool in listed:
            named.setdefault(tool.name, tool)
        return tuple(self._offer(tool) for name, tool in named.items() if self.allows(name))

    def _offer(self, tool: mcp_types.Tool) -> Tool:
        hints = tool.annotations or mcp_types.ToolAnnotations()

        def decided(said: Callable[[Override], bool | None], hint: bool | None = None) -> bool:
            word = self._first_said(tool.name, said)
            return bool(hint if word is None else word)

        return Tool(
            server=self.name,
            name=tool.name,
            description=tool.description or tool.title or "",
            input_schema=tool.input_schema,
            read_only=decided(lambda override: override.read_only, hints.read_only_hint),
            idempotent=decided(lambda override: override.idempotent, hints.idempotent_hint),
            sequential=decided(lambda override: override.sequential),
            terminal=decided(lambda override: override.terminal),
        )

    def _first_said(self, tool: str, said: Callable[[Override], Word | None]) -> Word | None:
        for override in self.overrides:
            word = said(override)
            if word is not None and fnmatchcase(tool, override.tool):
                return word
        return None
