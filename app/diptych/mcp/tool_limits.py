"""Which of the tools that a server lists can be used: bounds of names, descriptions and schemas.

Lists are written by strangers, and all of them is put into a prompt. A tool over a bound is left
out and its server says so; only a long description is cut.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import mcp_types

from diptych.core.catalog import SEPARATOR, Unavailable
from diptych.core.text import one_line, several_lines
from diptych.net.redaction import SECRETS

MAX_TOOLS = 256
MAX_DESCRIPTION_CHARS = 4_096
MAX_SCHEMA_CHARS = 64 * 1024  # of one tool, as JSON
MAX_CATALOG_CHARS = 512 * 1024  # of all schemas and descriptions of a server
MAX_NAMES_TOLD = 5  # of tools that are left out, for each reason

NAME_RULE = f'a name is 1 to 64 of A-Z, a-z, 0-9, ".", "-" and "_", without "{SEPARATOR}"'

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # MCP, tools, "Tool Names"


@dataclass(frozen=True, slots=True)
class UsableTools:
    """The tools that can be used; for each reason, the names of those that are left out."""

    tools: tuple[mcp_types.Tool, ...]
    left_out: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def unavailable(self, server: str) -> tuple[Unavailable, ...]:
        """Say what is left out, as a run and `/ready` are told it: an entry for each reason."""
        return tuple(
            Unavailable("tool", server, f"{len(names)} left out, {reason}: {told_names(names)}")
            for reason, names in self.left_out
        )


def is_usable_name(name: str) -> bool:
    """Say whether a tool may bear this name; `__` separates it from its server's."""
    return _NAME.fullmatch(name) is not None and SEPARATOR not in name


def usable_tools(
    listed: Iterable[mcp_types.Tool], invalid: Mapping[str, str] | None = None
) -> UsableTools:
    """Take the tools that are within the bounds, each name once: the first of a name counts.

    Others are `invalid`: where, by their names.
    """
    usable: dict[str, mcp_types.Tool] = {}
    left_out: dict[str, list[str]] = {}
    for name, place in (invalid or {}).items():
        reason = f"as not valid MCP{place and f', at {place}'}"
        left_out.setdefault(reason, []).append(one_line(SECRETS.redact(name), 64))
    size = 0
    for tool in listed:
        if tool.name in usable:
            continue
        description = several_lines(
            SECRETS.redact(tool.description or tool.title or ""), MAX_DESCRIPTION_CHARS
        )
        schema_size = _size(tool)
        size += schema_size + len(description)
        problem = _problem(tool, schema_size)
        if problem is None and (len(usable) == MAX_TOOLS or size > MAX_CATALOG_CHARS):
            problem = "as the server lists too much"
        if problem is None:
            schema = SECRETS.redact_value(tool.input_schema)
            shown = {"description": description, "input_schema": schema}
            usable[tool.name] = tool.model_copy(update=shown)
        else:
            left_out.setdefault(problem, []).append(one_line(SECRETS.redact(tool.name), 64))
    return UsableTools(
        tuple(usable.values()), tuple((reason, tuple(n)) for reason, n in left_out.items())
    )


def _problem(tool: mcp_types.Tool, schema_size: int) -> str | None:
    if not is_usable_name(tool.name):
        return f"as {NAME_RULE}"
    if SECRETS.redact(tool.name) != tool.name:
        return "as its name holds a secret"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "as they can only be called as tasks, which is not supported"
    if schema_size > MAX_SCHEMA_CHARS:
        return f"as its schema has more than {MAX_SCHEMA_CHARS} characters"
    return None


def _size(tool: mcp_types.Tool) -> int:
    try:
        return len(json.dumps(tool.input_schema, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return MAX_SCHEMA_CHARS + 1


def told_names(names: tuple[str, ...]) -> str:
    """Write names as a log, `/ready` and a prompt tell them: a few, and how many more."""
    more = len(names) - MAX_NAMES_TOLD
    return ", ".join(names[:MAX_NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")
