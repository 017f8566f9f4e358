"""Says where an answer of a server is not as MCP has it: by names of fields, never in its words."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pydantic import ValidationError

_FIELD = re.compile(r"\w{1,32}", re.ASCII)
_MOST_ERRORS = 1_000  # that are looked at: 300,000 empty tools have 600,000, 300 MB of objects
Place: TypeAlias = tuple[int | str, ...]


def not_valid(error: ValidationError) -> str:
    """Say `not valid MCP`, and at which value, such as `tools.3.inputSchema.type`: the first one.

    A value that may be of several kinds has an error for each kind; the value is told then. Where
    nearly nothing is valid no value is named.
    """
    places = _places(error)
    path = _path([place for place in places if place[:2] == places[0][:2]])
    return f"not valid MCP, at {path}" if path else "not valid MCP"


def invalid_tools(error: ValidationError) -> Mapping[int, str]:
    """Give which tools of a list are not valid, and where.

    None if something else is not, too, or nearly nothing is valid.
    """
    places = _places(error)
    found: dict[int, list[Place]] = {}
    for place in places:
        match place:
            case ("tools", int(index), *rest):
                found.setdefault(index, []).append(tuple(rest))
            case _:
                return {}
    return {index: _path(rests) for index, rests in found.items()}


def _places(error: ValidationError) -> list[Place]:
    if error.error_count() > _MOST_ERRORS:
        return []
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [each["loc"][:4] for each in errors]


def _path(places: Sequence[Place]) -> str:
    """Join the names that places have in common; none after one that is not a field's."""
    path = []
    for steps in zip(*places, strict=False):
        if len(set(steps)) > 1 or not _FIELD.fullmatch(str(steps[0])):
            break
        path.append(str(steps[0]))
    return ".".join(path)
