"""The tool servers that an Agent refers to (`tools[].ref`), resolved. Pure.

A reference becomes the server's URL and headers, and the server's own `tools` narrow the entry. One
that cannot be resolved is left out, and the Agent runs without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from diptych_operator.desired.references import (
    ForeignRef,
    ObservedState,
    Unresolved,
    usable,
)
from diptych_operator.resources.agent import Agent, is_foreign
from diptych_operator.resources.kinds import (
    ALLOWED_NAMESPACES,
    MCP_SERVER,
    Object,
    ObjectKey,
)
from diptych_operator.resources.mcp_server import McpServer

_ALL: Final = ["*"]
Tool: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class _Resolved:
    tools: list[Tool] = field(default_factory=list)
    problems: list[Unresolved] = field(default_factory=list)


def foreign_refs(agent: Agent) -> Iterator[ForeignRef]:
    """Return the objects of other groups that an Agent refers to."""
    for tool in agent.tools:
        if (ref := tool.get("ref")) and is_foreign(ref):
            yield _foreign_ref(agent, ref)


def with_tool_servers(agent: Agent, observed: ObservedState) -> Agent:
    """Return the Agent with URLs in place of references."""
    if not any("ref" in tool for tool in agent.tools):
        return agent
    return replace(agent, spec={**agent.spec, "tools": _resolve(agent, observed).tools})


def unresolved_tool_servers(agent: Agent, observed: ObservedState) -> Sequence[Unresolved]:
    """Return why references are left out or narrowed; `agent` is as written."""
    return _resolve(agent, observed).problems


def _resolve(agent: Agent, observed: ObservedState) -> _Resolved:
    found = _Resolved()
    for tool in agent.tools:
        if "ref" not in tool:
            found.tools.append(tool)
        elif is_foreign(tool["ref"]):
            _add_foreign(found, agent, tool, observed)
        else:
            _add_own(found, agent, tool, observed)
    return found


def _add_own(found: _Resolved, agent: Agent, tool: Tool, observed: ObservedState) -> None:
    name = tool["ref"].get("namespace", agent.namespace), tool["ref"]["name"]
    key, there = ObjectKey(MCP_SERVER, *name), observed.mcp_servers.get(name)
    server = usable(agent, key, there, observed, "spec.tools")
    if isinstance(server, Unresolved):
        found.problems.append(server)
        return
    if server.has_secrets and server.namespace != agent.namespace:
        found.problems.append(_no_secrets(server))
        return
    allow = narrowed(tool.get("allow") or _ALL, server.tools.get("allow") or _ALL)
    found.problems += _narrowing_problems(tool, server, allow)
    if not allow:
        return
    pins = {pin["tool"]: pin for pin in (*tool.get("pin", ()), *server.tools.get("pin", ()))}
    own_headers = tool.get("headers") or ()
    taken = {header["name"].lower() for header in own_headers}
    rest = {name: value for name, value in tool.items() if name != "ref"}
    merged = {
        "headers": [
            *(header for header in server.headers if header["name"].lower() not in taken),
            *own_headers,
        ],
        "allow": [] if allow == _ALL else allow,
        "pin": list(pins.values()),
        "overrides": [*tool.get("overrides", ()), *server.tools.get("overrides", ())],
    }
    own_auth = {"auth": server.auth} if server.auth else {}
    entry = {**own_auth, **rest, "url": server.url, **merged}
    found.tools.append({name: value for name, value in entry.items() if value != []})


def _foreign_ref(agent: Agent, ref: Mapping[str, Any]) -> ForeignRef:
    return ForeignRef(
        ref["apiGroup"], ref["kind"], ref.get("namespace", agent.namespace), ref["name"]
    )


def _add_foreign(found: _Resolved, agent: Agent, tool: Tool, observed: ObservedState) -> None:
    ref = _foreign_ref(agent, tool["ref"])
    server = observed.foreign_servers.get(ref)
    if server is None:  # not read yet
        return
    where = f"{ref.kind} {ref.name} ({ref.group}, namespace {ref.namespace})"
    if isinstance(server, Unresolved):
        found.problems.append(server)
    elif not _consents(server, ref, agent):
        sentence = (
            f"{where} lets no Agent of namespace {agent.namespace} use it; its annotation "
            f"{ALLOWED_NAMESPACES} decides"
        )
        found.problems.append(Unresolved("MCPServerNotAllowed", sentence))
    elif url := address_of(server):
        rest = {name: value for name, value in tool.items() if name != "ref"}
        found.tools.append({**rest, "url": url})
    else:
        sentence = f"{where} has no http(s) URL in status.address.url, status.url or spec.url yet"
        found.problems.append(Unresolved("NoAddress", sentence))


def address_of(content: Object) -> str | None:
    """Return the URL of a tool server of another group."""
    status, spec = content.get("status") or {}, content.get("spec") or {}
    candidates = ((status.get("address") or {}).get("url"), status.get("url"), spec.get("url"))
    url = next((one for one in candidates if isinstance(one, str) and one), "")
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return url if is_usable and parts.username is None and not parts.fragment else None


def _consents(content: Object, ref: ForeignRef, agent: Agent) -> bool:
    """Whether an object of another group may be used: in its namespace, or by its annotation."""
    if ref.namespace == agent.namespace:
        return True
    annotations = content["metadata"].get("annotations") or {}
    allowed = str(annotations.get(ALLOWED_NAMESPACES, "")).split(",")
    return not {"*", agent.namespace}.isdisjoint(one.strip() for one in allowed)


def _no_secrets(server: McpServer) -> Unresolved:
    return Unresolved(
        "MCPServerNotAllowed",
        f"MCPServer {server.namespace}/{server.name} has headers or auth from Secrets of its "
        "namespace, which Agents of others cannot have; use it from there, or put a server without "
        "them before it",
    )


def _narrowing_problems(
    tool: Tool, server: McpServer, allow: Sequence[str]
) -> Iterator[Unresolved]:
    offered = server.tools.get("allow") or _ALL
    for entry in tool.get("allow") or ():
        if entry not in allow and not any(_covers(entry, kept) for kept in allow):
            yield Unresolved(
                "ToolsNotAllowed",
                f"{entry} in allow of {tool['name']} is not within what MCPServer {server.name} "
                f"allows: {', '.join(offered)}",
            )
    for pin in tool.get("pin") or ():
        if server.pins.get(pin["tool"], pin["digest"]) != pin["digest"]:
            yield Unresolved(
                "PinsDiffer",
                f"{pin['tool']} of {tool['name']} is pinned otherwise by MCPServer {server.name}, "
                "whose pin holds",
            )


def narrowed(own: Sequence[str], offered: Sequence[str]) -> list[str]:
    """Return the globs of either list that lie within the other list.

    Two globs that only overlap, as `a*` and `*b`, are left out.
    """
    kept = [entry for entry in own if any(_covers(glob, entry) for glob in offered)]
    more = [entry for entry in offered if any(_covers(glob, entry) for glob in own)]
    return list(dict.fromkeys([*kept, *more]))


def _covers(glob: str, entry: str) -> bool:
    """Whether a glob matches all that an entry matches, as far as their texts show."""
    if glob == entry:
        return True
    is_plain = not set(entry) & set("*?[")
    return fnmatchcase(entry, glob) and (is_plain or not set(glob) & set("?["))
