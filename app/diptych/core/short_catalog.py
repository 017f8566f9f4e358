"""Shortens a catalog that takes too much of the model's context window (loop.md §11).

Only what the model reads is shortened, and only where it must be. Calls are still checked against
the whole schemas.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from diptych.core.catalog import Catalog, Peer, Tool
from diptych.core.messages import JSON

SHARE: Final = 0.5  # of the window that instructions and catalog may take together
_LONG, _SHORT = 200, 60  # characters of a description
_KEYS = ("type", "properties", "required", "items", "enum")  # that say how a call looks


def shorter_catalogs(catalog: Catalog) -> Iterator[Catalog]:
    """Give the catalog, then shorter ones: less of what is described, at last only the forms."""
    yield catalog
    yield _shortened(catalog, _LONG, keeps_all=True)
    yield _shortened(catalog, _SHORT, keeps_all=False)
    tools = tuple(replace(t, description="", input_schema=_names(t)) for t in catalog.tools)
    yield replace(catalog, tools=tools, agents=tuple(_peer(p, _SHORT) for p in catalog.agents))


def _shortened(catalog: Catalog, most: int, *, keeps_all: bool) -> Catalog:
    tools = tuple(
        replace(
            tool,
            description=_cut(tool.description, most),
            input_schema=_schema(tool.input_schema, keeps_all=keeps_all),
        )
        for tool in catalog.tools
    )
    return replace(catalog, tools=tools, agents=tuple(_peer(p, most) for p in catalog.agents))


def _schema(schema: Mapping[str, JSON], *, keeps_all: bool) -> Mapping[str, JSON]:
    """Leave out descriptions and examples, and unless all is kept whatever is not the form."""
    short: dict[str, JSON] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            short[key] = {name: _value(v, keeps_all=keeps_all) for name, v in value.items()}
        elif key not in _SAID and (keeps_all or key in _KEYS):
            short[key] = _value(value, keeps_all=keeps_all)
    return short


_SAID = frozenset({"description", "title", "examples", "default", "$comment"})


def _value(value: JSON, *, keeps_all: bool) -> JSON:
    return _schema(value, keeps_all=keeps_all) if isinstance(value, Mapping) else value


def _names(tool: Tool) -> Mapping[str, JSON]:
    properties = tool.input_schema.get("properties", {})
    names = properties if isinstance(properties, Mapping) else ()
    return {"properties": {name: {} for name in names}}


def _peer(peer: Peer, most: int) -> Peer:
    return replace(peer, description=_cut(peer.description, most), skills=())


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
