"""Tools of an `Agent`: functions, marked or plain, URLs, commands, and manifest entries."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import PurePath
from typing import Any, TypeAlias, TypeVar, overload
from urllib.parse import urlsplit

from diptych.core.catalog import SEPARATOR
from diptych.core.errors import ConfigError
from diptych.manifest.settings import OverrideConfig, ToolFunction, ToolServerConfig
from diptych.manifest.validation import closest_name

FUNCTIONS = "functions"
"""The name of the tool server of Python functions."""
ToolSource: TypeAlias = Callable[..., Any] | str | Sequence[str] | Mapping[str, Any]
"""A function, the URL of an MCP server, the command of one, or an entry of `spec.tools`."""

_MARKS = "__diptych_tool__"
_MAX_LABEL = 63
_RUNNERS = frozenset({"uvx", "uv", "npx", "bunx", "docker", "python", "python3", "node", "run"})
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ToolMarks:
    """What `tool` says of a function. With `ask`, a reason, its calls need approval."""

    read_only: bool | None = None
    idempotent: bool | None = None
    sequential: bool | None = None
    terminal: bool | None = None
    ask: str | None = None
    timeout: float | None = None


@overload
def tool(function: _Function, /) -> _Function: ...


@overload
def tool(
    *,
    read_only: bool | None = None,
    idempotent: bool | None = None,
    sequential: bool | None = None,
    terminal: bool | None = None,
    ask: str | None = None,
    timeout: float | None = None,
) -> Callable[[_Function], _Function]: ...


def tool(
    function: _Function | None = None, /, **marks: Any
) -> _Function | Callable[[_Function], _Function]:
    """Mark a function that is a tool; it stays callable as before.

    `read_only`: it changes nothing. `idempotent`: a second call with the same arguments changes
    nothing more. Calls of either may be repeated when their outcome is unknown. `sequential`: it
    never runs at the same time as another function of the run. `terminal`: the agent answers right
    after its result. `ask`: the reason why each call needs approval; rules of `policy` go first.
    `timeout`: seconds that one call may take (default 60).
    """
    known = [each.name for each in fields(ToolMarks)]
    for name in marks:
        if name not in known:
            hint = closest_name(name, known)
            raise ConfigError(
                f"@tool: {name} is no mark"
                + (f"; did you mean {hint}?" if hint else f"; known are {', '.join(known)}")
            )

    def mark(marked: _Function) -> _Function:
        setattr(marked, _MARKS, ToolMarks(**marks))
        return marked

    return mark if function is None else mark(function)


@dataclass(slots=True)
class ToolSources:
    """The tools of an agent, sorted: its functions, entries of `spec.tools`, rules of `policy`."""

    functions: list[ToolFunction] = field(default_factory=list)
    servers: list[Mapping[str, Any]] = field(default_factory=list)
    rules: list[Mapping[str, Any]] = field(default_factory=list)

    def function_server(self) -> tuple[ToolServerConfig, ...]:
        """Return the tool server of the functions, if there are any."""
        if not self.functions:
            return ()
        overrides = tuple(_override(function) for function in self.functions)
        return (ToolServerConfig(FUNCTIONS, functions=(*self.functions,), overrides=overrides),)


def sort_tools(agent: str, tools: Iterable[ToolSource]) -> ToolSources:
    """Sort tools by their kind, and name the servers. Raises `ConfigError`."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise ConfigError(f"Agent({agent!r}): tools: must be a list; write [{tools!r:.60}]")
    sources, problems = ToolSources(), list[str]()
    taken = {FUNCTIONS}
    for number, given in enumerate(tools):
        if isinstance(given, Mapping):
            sources.servers.append(given)
            taken.add(str(given.get("name")))
        elif isinstance(given, str):
            if "://" not in given:
                problems.append(
                    f"Agent({agent!r}): tools[{number}]: {given!r:.60} is not a URL; give the "
                    "function itself, or a command as a list of strings"
                )
                continue
            name = unique(name_of_url(given, "tools"), taken)
            sources.servers.append({"name": name, "url": given})
        elif isinstance(given, list | tuple):
            name = unique(_name_of_command(given), taken)
            sources.servers.append({"name": name, "command": list(given)})
        elif callable(given):
            sources.functions.append(given)
            if reason := _marks(given).ask:
                name = f"{FUNCTIONS}{SEPARATOR}{_name(given)}"
                sources.rules.append({"match": {"tool": name}, "do": "ask", "reason": reason})
        else:
            problems.append(
                f"Agent({agent!r}): tools[{number}]: must be a function, a URL, a command as a "
                f"list of strings, or a mapping as in spec.tools (got {given!r:.60})"
            )
    if problems:
        raise ConfigError(*problems)
    return sources


def name_of_url(url: str, fallback: str) -> str:
    """Return a name for what is behind a URL: the first label of its host, if that is a word."""
    host = urlsplit(url).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return (
            _label(host.removeprefix("www.").partition(".")[0].replace("localhost", "")) or fallback
        )
    return fallback


def unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken; from then on it is."""
    numbered = (name, *(f"{name[: _MAX_LABEL - 4]}-{n}" for n in range(2, 1000)))
    found = next(each for each in numbered if each not in taken)
    taken.add(found)
    return found


def _name_of_command(command: Sequence[object]) -> str:
    """Return the name of the program that a command runs, such as `mcp-server-time` of `uvx …`."""
    words = [str(word) for word in command if not str(word).startswith("-")]
    named = [PurePath(word.partition("@")[0] or word).stem for word in words]
    found = next((word for word in named if word not in _RUNNERS), "")
    return _label(found) or "tools"


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:_MAX_LABEL].strip("-")


def _marks(function: ToolFunction) -> ToolMarks:
    found = getattr(function, _MARKS, None)
    return found if isinstance(found, ToolMarks) else ToolMarks()


def _name(function: ToolFunction) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _override(function: ToolFunction) -> OverrideConfig:
    marks = _marks(function)
    return OverrideConfig(
        _name(function),
        marks.read_only,
        marks.idempotent,
        marks.sequential,
        marks.terminal,
        marks.timeout,
    )
