"""Reads the native calls of a reply: those in the API's own `tool_calls` (loop.md §3).

They become calls as if they stood in the reply's text. The ids that the API gives them are no ids
of the graph: nothing can refer to them.
"""

from collections.abc import Sequence
from typing import Any

from diptych.core.catalog import Catalog
from diptych.core.functions import DELEGATE_PREFIX
from diptych.core.messages import JSON, NativeCall
from diptych.core.reading.other_forms import to_own_form
from diptych.core.reading.parser import Rules, check_calls
from diptych.core.reading.reply import unless_broken
from diptych.core.reading.strict_json import decode_json
from diptych.core.reading.verdict import ActionError, Calls, NoOp
from diptych.core.reading.wording import quoted


def read_native(
    calls: Sequence[NativeCall], finish_reason: str, catalog: Catalog, rules: Rules
) -> Calls | ActionError:
    """Read at least one native call; none counts of a reply that its length or a filter cut off.

    `Calls.places` says for each of them which call's result it gets, as in `parse`.
    """
    values: list[dict[str, Any]] = []
    error: ActionError | None = None
    for call in calls:
        arguments = _arguments(call)
        if isinstance(arguments, ActionError):
            error = error or arguments
        else:
            values.append(_own_form(call.name, arguments, catalog))
    found = error or check_calls(values, catalog, rules)
    if isinstance(found, NoOp):  # which no call with a name is
        found = ActionError("missing_field", "a call must name the function that it calls")
    return unless_broken(found, finish_reason)


def _arguments(call: NativeCall) -> "dict[str, Any] | ActionError":
    value: JSON | ValueError = decode_json(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, str):  # written as JSON twice, as some servers do
        value = decode_json(value) if value.strip() else {}
    match value:
        case ValueError():
            problem = f"the arguments of {quoted(call.name)} are not JSON: {value}"
            return ActionError("json_syntax", problem)
        case None:
            return {}
        case dict():
            return value
        case _:
            problem = f"the arguments of {quoted(call.name)} must be a JSON object"
            return ActionError("invalid_arguments", problem)


def _own_form(name: str, arguments: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    match catalog.functions.targets.get(name):
        case ("tool", tool):
            return {"tool": tool, "arguments": arguments}
        case ("agent", agent):
            return {"agent": agent, "task": arguments.get("task")}
    meant = to_own_form(name, arguments, catalog)
    if name.startswith(DELEGATE_PREFIX) and "tool" in meant:  # an agent that is not offered
        return {"agent": name.removeprefix(DELEGATE_PREFIX), "task": str(arguments.get("task"))}
    return meant
