"""The catalog of a run: the tools and agents that it may call, fixed when it starts."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from diptych.core.functions import DELEGATE_PREFIX, Functions, make_functions
from diptych.core.messages import JSONObject
from diptych.core.text import one_line

SEPARATOR = "__"
RESULT_SERVER = "result"
"""What the loop's own tool `result__read` has in place of a server; no server is called so."""


@dataclass(frozen=True)
class Tool:
    """A tool of an MCP server.

    `read_only` and `idempotent` come from the manifest or the server's annotations; a call of a
    tool that is neither is never sent twice. `sequential` calls never overlap another of their
    server in a run; a step whose results are all `terminal` ends phase 1 (loop.md §12).
    `destructive` and `open_world` are what the server says, None if it says nothing.
    """

    server: str
    name: str
    description: str
    input_schema: JSONObject
    read_only: bool = False
    idempotent: bool = False
    sequential: bool = False
    terminal: bool = False
    destructive: bool | None = None
    open_world: bool | None = None

    @property
    def long_name(self) -> str:
        return f"{self.server}{SEPARATOR}{self.name}"

    @cached_property
    def schema_text(self) -> str:
        """The input schema as JSON; made once for many calls."""
        return json.dumps(self.input_schema, default=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another agent, as its agent card describes it.

    One with `gets_conversation` False is given its task alone: it gets no share of a budget, and
    reports nothing of what it uses. For others that is None, as earlier versions did not know it.
    """

    name: str
    description: str
    skills: tuple[str, ...] = ()
    gets_conversation: Literal[False] | None = None

    @property
    def summary(self) -> str:
        """The description on one line, with the names of the skills."""
        skills = f" (skills: {', '.join(map(one_line, self.skills))})" if self.skills else ""
        return f"{one_line(self.description)}{skills}"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """What the manifest names and cannot be had: a server, an agent, a key, a model, the store.

    A `rule` is a field that names tools or agents which nothing offers (`policy.unmatched`).
    A `tool` stands for some tools of the server of its name, which are left out. A run is told of
    servers, tools and agents only. `tools` are the names of the tools that a server offered when it
    was last connected, or of the pinned ones that have changed. They are None for a server that was
    never connected, and in catalogs that version 0.1 recorded: any unknown name may be its tool's.
    """

    kind: Literal["server", "tool", "agent", "key", "model", "store", "rule", "dns"]
    name: str
    reason: str
    tools: tuple[str, ...] | None = None

    def had_tool(self, name: str) -> bool:
        """Say whether a tool name that no connected server offers is this server's."""
        return self.kind == "server" and self.tools is not None and name in self.tools


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
            is_own = tool.server == RESULT_SERVER or tool.name in self._long_names
            unique = self._name_counts[tool.name] == 1 and not is_own
            yield (tool.name if unique else tool.long_name), tool

    @cached_property
    def functions(self) -> Functions:
        """All of it as functions of an API's `tools` field; made once for many runs."""
        tools = ((name, tool.description, tool.input_schema) for name, tool in self.listed())
        return make_functions(tools, ((peer.name, peer.summary) for peer in self.agents))

    @cached_property
    def names(self) -> frozenset[str]:
        """All names by which something may be called, also what is unavailable."""
        away = (name for u in self.unavailable for name in (u.name, *(u.tools or ())))
        agents = [peer.name for peer in self.agents]
        delegates = (f"{DELEGATE_PREFIX}{name}" for name in agents)
        return frozenset((*self._tools_by_name, *agents, *delegates, *away))

    def missing_for_tool(self, name: str) -> str | None:
        """Name the unavailable server or servers that a tool name nobody offers belongs to.

        It does if it has the server's prefix, or if the server offered a tool of that name before;
        any other name may belong to those servers whose tools nobody knows (decision 204). Of a
        tool that has changed since it was pinned, this gives the reason.
        """
        return self.known_missing(name) or self.possibly_missing(name)

    def known_missing(self, name: str) -> str | None:
        """Name what a tool name that nobody offers is known to belong to; see the above."""
        for left_out in self.unavailable:
            if left_out.kind == "tool" and left_out.tools:
                long_names = (f"{left_out.name}{SEPARATOR}{tool}" for tool in left_out.tools)
                if name in left_out.tools or name in long_names:
                    return left_out.reason
        servers = [u.name for u in self.unavailable if u.kind == "server"]
        owner = next((s for s in servers if name.startswith(s + SEPARATOR)), None)
        earlier = (u.name for u in self.unavailable if u.had_tool(name))
        return owner or (", ".join(earlier) or None)

    def possibly_missing(self, name: str) -> str | None:
        """Name the unavailable servers that may have a tool, as nobody knows what they have."""
        unknown = (u.name for u in self.unavailable if u.kind == "server" and u.tools is None)
        return (", ".join(unknown) or None) if name else None

    def is_unavailable_agent(self, name: str) -> bool:
        return any(u.kind == "agent" and u.name == name for u in self.unavailable)

    @cached_property
    def _long_names(self) -> frozenset[str]:
        return frozenset(tool.long_name for tool in self.tools)

    @cached_property
    def _name_counts(self) -> Counter[str]:
        return Counter(tool.name for tool in self.tools if tool.server != RESULT_SERVER)

    @cached_property
    def _tools_by_name(self) -> dict[str, Tool]:
        """Every name of a tool. A long name is its own tool's, whatever another is called."""
        names: dict[str, Tool] = {}
        for tool in self.tools:
            names.setdefault(tool.long_name, tool)
        for name, tool in self.listed():
            names.setdefault(name, tool)
        return names
