"""Finds manifest fields that name tools or agents which do not exist."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from diptych.core.catalog import CALLER_SERVER, RESULT_SERVER, SEPARATOR, Catalog
from diptych_cel.expressions import About

_OWN_TOOL = (RESULT_SERVER, "read")  # offered only while there are excerpts


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """A manifest field at `place` that names tools or agents, by name or glob.

    With a `server`, the name is one of that server's own tool names.
    """

    place: str
    about: About
    pattern: str
    server: str = ""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A field that matches nothing: a mistake if it is a name, perhaps intended if it is a glob."""

    place: str
    reason: str
    is_glob: bool


def is_glob(pattern: str) -> bool:
    """Whether a pattern may match more than one name."""
    return any(sign in pattern for sign in "*?[")


def unmatched(named: Sequence[NamedCalls], catalog: Catalog) -> tuple[Unmatched, ...]:
    """Return the fields that match nothing in the catalog.

    Names that may belong to a server never connected count as matched.
    """
    offers = _Offers(catalog)
    return tuple(
        Unmatched(each.place, offers.complaint(each), is_glob(each.pattern))
        for each in named
        if not offers.has(each)
    )


class _Offers:
    """The names in a catalog; `_unknown` are servers that were never connected."""

    def __init__(self, catalog: Catalog) -> None:
        away = [u for u in catalog.unavailable if u.kind in {"server", "tool"}]
        self._agents = [peer.name for peer in catalog.agents]
        self._agents += [u.name for u in catalog.unavailable if u.kind == "agent"]
        self._tools = [(tool.server, tool.name) for tool in catalog.tools]
        self._tools += [(u.name, tool) for u in away for tool in u.tools or ()]
        self._unknown = [u.name for u in away if u.kind == "server" and u.tools is None]

    def has(self, named: NamedCalls) -> bool:
        names = self._names(named)
        if any(fnmatchcase(name, named.pattern) for name in names):
            return True
        if named.about == "agent" or named.server:
            return named.server in self._unknown
        prefix, separator, _ = named.pattern.partition(SEPARATOR)
        of_server = prefix if separator else "*"
        is_own = prefix == CALLER_SERVER or fnmatchcase(SEPARATOR.join(_OWN_TOOL), named.pattern)
        return is_own or any(fnmatchcase(server, of_server) for server in self._unknown)

    def complaint(self, named: NamedCalls) -> str:
        who = f" of server {named.server}" if named.server else ""
        how = "matches" if is_glob(named.pattern) else "is called"
        near = get_close_matches(named.pattern, self._names(named), 1, cutoff=0.65)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"no {named.about}{who} {how} {named.pattern}, so this has no effect{hint}"

    def _names(self, named: NamedCalls) -> Sequence[str]:
        if named.about == "agent":
            return self._agents
        if named.server:
            return [tool for server, tool in self._tools if server == named.server]
        longs = [f"{server}{SEPARATOR}{tool}" for server, tool in self._tools]
        return [*longs, *(tool for _, tool in self._tools)]
