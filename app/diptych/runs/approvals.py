"""Decisions on calls that wait for approval: checked, and made to events."""

from dataclasses import dataclass, replace
from typing import ClassVar

from diptych.core.catalog import Catalog
from diptych.core.errors import InvalidRequest
from diptych.core.events import ApprovalDecided, ApprovalRequested, Decision, WaitKind
from diptych.core.messages import Call, Delegation, JSONObject, ToolCall
from diptych.core.reading.arguments import check_arguments
from diptych.core.reading.strict_json import MAX_DEPTH, is_deep


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """A request to decide on a waiting call.

    `arguments` belong to `edit` (for a delegation, `{"task": …}`), `call` to `replace`: `{"tool":
    …, "arguments": …}` or `{"agent": …, "task": …}`. `subject` and `caller` are as in
    `ApprovalDecided`.
    """

    kind: ClassVar[WaitKind] = "approval"
    decision: Decision
    reason: str = ""
    arguments: JSONObject | None = None
    call: JSONObject | None = None
    subject: str = ""
    caller: str = ""


def decision_event(
    asked: ApprovalRequested, request: DecisionRequest, catalog: Catalog, answer_id: str
) -> ApprovalDecided:
    """Make the event of a decision. Raises `InvalidRequest` with the invalid path."""
    if (request.arguments is not None) != (request.decision == "edit"):
        raise InvalidRequest(
            "arguments are required for edit, and allowed only there", param="arguments"
        )
    if (request.call is not None) != (request.decision == "replace"):
        raise InvalidRequest("call is required for replace, and allowed only there", param="call")
    call: Call | None = None
    if request.arguments is not None:
        call = _edited(asked.call, request.arguments, catalog)
    elif request.call is not None:
        call = _replaced(asked.call, request.call, catalog)
    return ApprovalDecided(
        asked.call.id,
        request.decision,
        answer_id,
        request.reason,
        call,
        request.subject,
        caller=request.caller,
    )


def _edited(call: Call, arguments: JSONObject, catalog: Catalog) -> Call:
    if isinstance(call, Delegation):
        return replace(call, task=_task(arguments, "arguments"))
    _check(call.name, arguments, catalog, "arguments")
    return replace(call, arguments=arguments)


def _replaced(asked: Call, given: JSONObject, catalog: Catalog) -> Call:
    tool, agent = given.get("tool"), given.get("agent")
    extra = given.keys() - {"tool", "arguments", "agent", "task"}
    if isinstance(tool, str) == isinstance(agent, str) or extra:
        message = 'call is {"tool": …, "arguments": {…}} or {"agent": …, "task": …}'
        raise InvalidRequest(message, param="call", code="invalid_arguments")
    if isinstance(agent, str):
        if catalog.agent(agent) is None:
            raise _invalid(f"there is no agent {agent!r}", "call.agent")
        return Delegation(asked.id, agent, _task(given, "call"), asked.label, asked.after)
    arguments = given.get("arguments", {})
    if not isinstance(arguments, dict):
        raise _invalid("arguments must be an object", "call.arguments")
    _check(str(tool), arguments, catalog, "call.arguments")
    return ToolCall(asked.id, str(tool), arguments, asked.label, asked.after)


def _task(given: JSONObject, place: str) -> str:
    task = given.get("task")
    if not isinstance(task, str) or not task.strip():
        raise _invalid("a delegation needs a task that is not blank", f"{place}.task")
    return task


def _check(name: str, arguments: JSONObject, catalog: Catalog, place: str) -> None:
    tool = catalog.tool(name)
    if tool is None:
        raise _invalid(f"there is no tool {name!r}", "call.tool")
    if is_deep(arguments):  # the bound of model calls, and of records
        raise _invalid(f"arguments may be nested at most {MAX_DEPTH} levels deep", place)
    if problem := check_arguments(tool, arguments, references_fit=False):
        path = problem.removeprefix(f"{tool.name}: ").partition(":")[0]
        raise _invalid(problem, path.replace("arguments", place, 1))


def _invalid(message: str, path: str) -> InvalidRequest:
    return InvalidRequest(message, param=path, code="invalid_arguments")
