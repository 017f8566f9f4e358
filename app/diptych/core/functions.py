"""What a run may call, as the functions that an API's `tools` field offers (loop.md §3).

An API takes names of 1 to 64 letters, digits, `_` and `-`, and each once. A name that does not fit
is written with `_` in place of what does not, cut, and ended with eight digits of its SHA-256; the
table leads back to what it stands for.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from diptych.core.messages import JSONObject
from diptych.core.model_request import FunctionTool

DELEGATE_PREFIX = "delegate_to_"
"""What the name of an agent's function begins with."""

_MAX_NAME = 64
_HASH_DIGITS = 8
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_NAME}}}")
_TASK: JSONObject = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What the agent is to do."}},
    "required": ["task"],
}

Target = tuple[Literal["tool", "agent"], str]
"""What a function stands for: a tool, by the name that it is listed with, or an agent."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions in the catalog's order, tools first, and what each name stands for."""

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
    """Give the name that an API takes for a name: itself, unless it does not fit or is taken."""
    if _NAME.fullmatch(name) and name not in taken:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: _MAX_NAME - _HASH_DIGITS - 1]
    return f"{plain}_{digest}"
