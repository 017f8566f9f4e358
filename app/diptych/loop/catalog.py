"""The catalog of a run: the tools and agents that it may call, fixed when it starts.

Not here: how they are described to the model (`prompt`) and reached (`adapters`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from diptych.loop.messages import JSONObject

SEPARATOR = "__"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an MCP server.

    `read_only` and `idempotent` come from the manifest or the server's annotations; a call of a
    tool that is neither is never sent twice. `sequential` calls never overlap another of their
    server in a run; a step whose results are all `terminal` ends phase 1 (loop.md §12).
    """

    server: str
    name: str
    description: str
    input_schema: JSONObject
    read_only: bool = False
    idempotent: bool = False
    sequential: bool = False
    terminal: bool = False

    @property
    def long_name(self) -> str:
        return f"{self.server}{SEPARATOR}{self.name}"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another agent, as its agent card describes it."""

    name: str
    description: str
    skills: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """What the manifest names and cannot be had: a server, an agent, a key; why in a few words.

    A run is told of servers and agents only. `tools` are the names of the tools that a server
    offered when it was last connected. They are None in catalogs that version 0.1 recorded, which
    took any unknown name for one of its tools.
    """

    kind: Literal["server", "agent", "key"]
    name: str
    reason: str
    tools: tuple[str, ...] | None = None

    def may_have_tool(self, name: str) -> bool:
        """Say whether a tool name that no connected server offers may be this server's."""
        if self.kind != "server":
            return False
        return self.tools is None or name in self.tools


@dataclass(frozen=True)
class Catalog:
    """All that a run may call, in the manifest's order, and what is missing from it."""

    tools: tuple[Tool, ...] = ()
    agents: tuple[Peer, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()

    def tool(self, name: str) -> Tool | None:
        """Find a tool by its short name, if that is unique, or by `<server>__<name>`."""
        return self._tools_by_name.get(name)

    def agent(self, name: str) -> Peer | None:
        return next((peer for peer in self.agents if peer.name == name), None)

    def listed(self) -> Iterator[tuple[str, Tool]]:
        """Each tool with the one name that the model is shown (the long one only on a clash)."""
        for tool in self.tools:
            unique = self._name_counts[tool.name] == 1
            yield (tool.name if unique else tool.long_name), tool

    def missing_for_tool(self, name: str) -> str | None:
        """Name the unavailable server or servers that a tool name nobody offers belongs to.

        It does if it has the server's prefix, or if the server offered a tool of that name before.
        """
        servers = [u.name for u in self.unavailable if u.kind == "server"]
        owner = next((s for s in servers if name.startswith(s + SEPARATOR)), None)
        earlier = (u.name for u in self.unavailable if u.may_have_tool(name))
        return owner or (", ".join(earlier) or None)

    def is_unavailable_agent(self, name: str) -> bool:
        return any(u.kind == "agent" and u.name == name for u in self.unavailable)

    @cached_property
    def _name_counts(self) -> Counter[str]:
        return Counter(tool.name for tool in self.tools)

    @cached_property
    def _tools_by_name(self) -> dict[str, Tool]:
        names = dict(self.listed())
        for tool in self.tools:
            names.setdefault(tool.long_name, tool)
        return names
