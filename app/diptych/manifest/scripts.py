"""Which agent plays which script of `DEBUG_MOCK_RESPONSES` (loop.md §10)."""

from collections.abc import Mapping
from typing import Any

import orjson

_OF_A_REPLY = frozenset({"content", "tool_calls", "error"})  # one of them is in each


def scripts_by_agent(text: str) -> Mapping[str, Any]:
    """Return the scripts of several agents, by name; empty if the text is one script."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        scripts = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}  # `check_mock_scripts` reports it
    return scripts if _OF_A_REPLY.isdisjoint(scripts) else {}


def script_of(agent: str, text: str, *, is_asked: bool) -> str:
    """Return an agent's script, or "": its own of several, or the only one if it is asked."""
    scripts = scripts_by_agent(text)
    if not scripts:
        return text if is_asked else ""
    if agent not in scripts:
        return ""
    replies = scripts[agent]
    return orjson.dumps(replies if isinstance(replies, list) else [replies]).decode()
