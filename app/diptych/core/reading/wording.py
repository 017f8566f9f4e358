"""Pieces of the sentences that tell a model what was wrong with its reply, each bounded."""

import json
from collections.abc import Iterable

_LISTED = 1000  # characters of the names that an error lists
_SHOWN = 60  # characters of one name


def cut(text: str) -> str:
    """Give the text, shortened to 1,000 characters."""
    return text if len(text) <= _LISTED else f"{text[:_LISTED]} …"


def listed(names: Iterable[str]) -> str:
    """Give names as a list in words, `none` for none."""
    return cut(", ".join(names)) or "none"


def quoted(name: str) -> str:
    """Give a name in quotation marks, shortened to 60 characters."""
    return json.dumps(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…", ensure_ascii=False)
