"""A catalog as JSON, as runs record it, and back again."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from diptych.core.catalog import Catalog, Peer, Tool, Unavailable


def encode_catalog(catalog: Catalog) -> dict[str, Any]:
    """Give the catalog as JSON. What is None is left out, as version 0.1 did not know it."""
    return asdict(catalog, dict_factory=_without_none)


def decode_catalog(stored: Mapping[str, Any]) -> Catalog:
    """Read what `encode_catalog` gave, in this version or an earlier one."""
    return Catalog(
        tuple(Tool(**tool) for tool in stored["tools"]),
        tuple(Peer(**{**peer, "skills": tuple(peer["skills"])}) for peer in stored["agents"]),
        tuple(_decode_unavailable(entry) for entry in stored["unavailable"]),
    )


def _without_none(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if value is not None}


def _decode_unavailable(stored: Mapping[str, Any]) -> Unavailable:
    names = stored.get("tools")
    return Unavailable(**{**stored, "tools": None if names is None else tuple(names)})
