"""The catalog of a run: the tools and agents it may call, fixed at its start."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from diptych.core.messages import JSON, JSONObject
from diptych.core.model_request import FunctionTool
from diptych.core.text import one_line

SEPARATOR = "__"  # between server and tool
RESULT_SERVER = "result"
"""The server name of the built-in tool `result__read`; no real server may use it."""

CALLER_SERVER = "caller"
"""The server name of the tools that a run's caller runs itself; no real server may use it."""

RESERVED_SERVERS = (RESULT_SERVER, CALLER_SERVER)


DELEGATE_PREFIX = "delegate_to_"
"""Prefix of the function name of an agent."""

_MAX_NAME = 64
_HASH_DIGITS = 8
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_NAME}}}")
_TASK: JSONObject = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What the agent is to do."}},
    "required": ["task"],
}

Target = tuple[Literal["tool", "agent"], str]
"""The tool (by its listed name) or agent that a function stands for."""


@dataclass(frozen=True, slots=True)
class Functions:
    """Native functions in catalog order, tools first, and the target of each name."""

    tools: tuple[FunctionTool, ...]
    targets: Mapping[str, Target]


def make_functions(
    tools: Iterable[tuple[str, str, JSONObject]], agents: Iterable[tuple[str, str]]
) -> Functions:
    """Make functions of tools (name, description, input schema) and agents (name, description)."""
    made: list[FunctionTool] = []
    targets: dict[str, Target] = {}
    for name, description, schema in tools:
        taken = function_name(name, targets)
        targets[taken] = ("tool", name)
        # OpenAI refuses an object without `properties`, which MCP allows.
        parameters = {"type": "object", "properties": {}, **schema}
        made.append(FunctionTool(taken, description, parameters))
    for name, description in agents:
        taken = function_name(DELEGATE_PREFIX + name, targets)
        targets[taken] = ("agent", name)
        made.append(FunctionTool(taken, description, _TASK))
    return Functions(tuple(made), targets)


def function_name(name: str, taken: Iterable[str] = ()) -> str:
    """Return a name that APIs accept: unchanged if it is valid and free, else with a hash."""
    if _NAME.fullmatch(name) and name not in taken:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _MAX_NAME - _HASH_DIGITS - 1]
    return f"{plain}_{digest}"


@dataclass(frozen=True)
class Tool:
    """A tool of an MCP server.

    `read_only` and `idempotent` come from the manifest or the server's annotations; a call of any
    other tool is never sent twice. `sequential` calls never overlap another of their server in a
    run; a step whose calls are all `terminal` ends phase 1 (loop.md §12). `destructive` and
    `open_world` are the server's annotations, None if missing.
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

    @property
    def is_callers(self) -> bool:
        """Whether the run's caller runs the tool, and brings its result in a later request."""
        return self.server == CALLER_SERVER

    @cached_property
    def schema_text(self) -> str:
        """The input schema as JSON, cached."""
        return json.dumps(self.input_schema, default=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another agent, as its agent card describes it.

    `gets_conversation` is False for agents that receive only the task: they get no budget share and
    report no usage. Otherwise it is None.
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
    """Something that the manifest names but that is missing or unreachable.

    Kind `rule` is a policy or manifest field that matches no tool or agent (`policy.unmatched`).
    Kind `tool` stands for left-out tools of the server `name`. Prompts mention only servers, tools
    and agents. `tools` are the tools that a server offered when last connected, or the pinned
    ones that have changed; None for a server that was never connected: any unknown tool may be its
    own.
    """

    kind: Literal["server", "tool", "agent", "key", "model", "store", "rule", "dns"]
    name: str
    reason: str
    tools: tuple[str, ...] | None = None

    def had_tool(self, name: str) -> bool:
        """Whether this server offered a tool of this name when last connected."""
        return self.kind == "server" and self.tools is not None and name in self.tools


@dataclass(frozen=True)
class Catalog:
    """All tools and agents that a run may call, in manifest order, and what is missing."""

    tools: tuple[Tool, ...] = ()
    agents: tuple[Peer, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()

    def tool(self, name: str) -> Tool | None:
        """Find a tool by its short name, if unique, or by `<server>__<name>`."""
        return self._tools_by_name.get(name)

    def agent(self, name: str) -> Peer | None:
        return next((peer for peer in self.agents if peer.name == name), None)

    def listed(self) -> Iterator[tuple[str, Tool]]:
        """Yield each tool with the name shown to the model: the long name only on a clash."""
        for tool in self.tools:
            is_own = tool.server == RESULT_SERVER or tool.name in self._long_names
            unique = self._name_counts[tool.name] == 1 and not is_own
            yield (tool.name if unique else tool.long_name), tool

    @cached_property
    def functions(self) -> Functions:
        """The catalog as functions for an API's `tools` field, cached for many runs."""
        tools = ((name, tool.description, tool.input_schema) for name, tool in self.listed())
        made = make_functions(tools, ((peer.name, peer.summary) for peer in self.agents))
        functions = [
            replace(function, is_callers=True) if tool.is_callers else function
            for function, tool in zip(made.tools, self.tools, strict=False)
        ]
        return replace(made, tools=(*functions, *made.tools[len(functions) :]))

    @cached_property
    def names(self) -> frozenset[str]:
        """All callable names, including unavailable ones."""
        away = (name for u in self.unavailable for name in (u.name, *(u.tools or ())))
        agents = [peer.name for peer in self.agents]
        delegates = (f"{DELEGATE_PREFIX}{name}" for name in agents)
        return frozenset((*self._tools_by_name, *agents, *delegates, *away))

    def missing_for_tool(self, name: str) -> str | None:
        """Name the unavailable server, or servers, that an unknown tool may belong to.

        For a pinned tool that has changed, return the reason instead.
        """
        return self.known_missing(name) or self.possibly_missing(name)

    def known_missing(self, name: str) -> str | None:
        """Name the unavailable server that a tool is known to belong to; see `missing_for_tool`.

        It is known by the tool's prefix, or because the server offered the tool before.
        """
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
        """Name the unavailable servers whose tools are unknown."""
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
        """Every name of every tool. A long name always means its own tool."""
        names: dict[str, Tool] = {}
        for tool in self.tools:
            names.setdefault(tool.long_name, tool)
        for name, tool in self.listed():
            names.setdefault(name, tool)
        return names


SHARE: Final = 0.5  # of the window for instructions and catalog together
_LONG, _SHORT = 200, 60  # characters of a description
_KEYS = ("type", "properties", "required", "items", "enum")  # of a schema's bare structure


def shorter_catalogs(catalog: Catalog) -> Iterator[Catalog]:
    """Yield the catalog, then ever shorter ones, the last with only the names of arguments."""
    yield catalog
    yield _shortened(catalog, _LONG, keeps_all=True)
    yield _shortened(catalog, _SHORT, keeps_all=False)
    tools = tuple(replace(t, description="", input_schema=_names(t)) for t in catalog.tools)
    yield replace(catalog, tools=tools, agents=tuple(_peer(p, _SHORT) for p in catalog.agents))


def _shortened(catalog: Catalog, max_chars: int, *, keeps_all: bool) -> Catalog:
    tools = tuple(
        replace(
            tool,
            description=_cut(tool.description, max_chars),
            input_schema=_schema(tool.input_schema, keeps_all=keeps_all),
        )
        for tool in catalog.tools
    )
    return replace(catalog, tools=tools, agents=tuple(_peer(p, max_chars) for p in catalog.agents))


def _schema(schema: Mapping[str, JSON], *, keeps_all: bool) -> Mapping[str, JSON]:
    """Remove descriptions and examples; without `keeps_all`, keep only the bare structure."""
    short: dict[str, JSON] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            short[key] = {name: _value(v, keeps_all=keeps_all) for name, v in value.items()}
        elif key not in _DESCRIPTIVE and (keeps_all or key in _KEYS):
            short[key] = _value(value, keeps_all=keeps_all)
    return short


_DESCRIPTIVE = frozenset({"description", "title", "examples", "default", "$comment"})


def _value(value: JSON, *, keeps_all: bool) -> JSON:
    return _schema(value, keeps_all=keeps_all) if isinstance(value, Mapping) else value


def _names(tool: Tool) -> Mapping[str, JSON]:
    properties = tool.input_schema.get("properties", {})
    names = properties if isinstance(properties, Mapping) else ()
    return {"properties": {name: {} for name in names}}


def _peer(peer: Peer, max_chars: int) -> Peer:
    return replace(peer, description=_cut(peer.description, max_chars), skills=())


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
