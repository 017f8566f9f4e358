"""Reads the form that the answer to a request is to have, and what becomes of the caller's tools.

An agent calls its own tools. A tool that the caller forces is a form of the answer (decision 70);
one that the model may or may not call is refused, or left out if the manifest says so.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from diptych.core.errors import InvalidRequest
from diptych.http.answer_form import TypedOutput, read_forced_tools, read_response_format

_TOOL_FIELDS = ("tools", "tool_choice", "functions", "function_call")
_SAY_NOTHING: tuple[object, ...] = (None, [], "none", "auto")
_NO_TOOLS = (
    "this agent calls its own tools, and no others. Remove it; or force a call by tool_choice, "
    "or ask for an answer of that form; or let the agent's manifest say chat.callerTools: ignore"
)


class AskedForm(NamedTuple):
    """What a request says of the form of its answer, as a chat says it.

    `older` are fields of earlier versions of the API.
    """

    response_format: Mapping[str, Any] | None
    tools: Sequence[Any] | None
    tool_choice: object
    older: Mapping[str, object] = {}


async def read_answer_form(
    asked: AskedForm, caller_tools: Literal["refuse", "ignore"]
) -> tuple[TypedOutput, tuple[str, ...]]:
    """Read the form of the answer, and name the fields of tools that have no effect.

    Raises `InvalidRequest`.
    """
    given = {"tools": asked.tools, "tool_choice": asked.tool_choice, **asked.older}
    output, forced = TypedOutput(), None
    if asked.response_format is not None or asked.tools:
        output, forced = await asyncio.to_thread(_read_forms, asked)
    if forced:
        return forced, ()
    present = tuple(name for name in _TOOL_FIELDS if given.get(name) not in _SAY_NOTHING)
    if asked.tool_choice == "none":  # OpenAI's own way to say that the tools are not to be used
        present = tuple(name for name in present if name != "tools")
    refused = next((name for name in present if name in ("tools", "functions")), None)
    if refused and caller_tools == "refuse":
        raise InvalidRequest(f"{refused}: {_NO_TOOLS}", param=refused, code="unsupported_parameter")
    return output, present


def _read_forms(asked: AskedForm) -> tuple[TypedOutput, TypedOutput | None]:
    output = TypedOutput(read_response_format(asked.response_format))
    return output, read_forced_tools(asked.tools, asked.tool_choice)
