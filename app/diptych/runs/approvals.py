"""Decisions on approvals: made of what somebody asks for, and looked for in the record."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diptych.core.approval_events import ApprovalDecided, ApprovalRequested, Decision
from diptych.core.approval_records import Approval, approvals_of
from diptych.core.catalog import Catalog
from diptych.core.codec import Record, is_terminal
from diptych.core.errors import AlreadyDecided, ApprovalNotFound, InvalidRequest, RunEnded
from diptych.core.messages import Call, Delegation, JSONObject, ToolCall
from diptych.core.reading.arguments import check_arguments
from diptych.core.reading.strict_json import MAX_DEPTH, is_deep


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """What somebody decides on a call that waits.

    `arguments` are those of an `edit` (of a delegation `{"task": …}`); `call` is that of a
    `replace`: `{"tool": …, "arguments": …}` or `{"agent": …, "task": …}`. `subject` and `caller`
    are who decides, as `ApprovalDecided` has them.
    """

    decision: Decision
    reason: str = ""
    arguments: JSONObject | None = None
    call: JSONObject | None = None
    subject: str = ""
    caller: str = ""


def find_approval(records: Sequence[Record], call_id: str) -> Approval:
    """Find the approval of a call.

    Raises `ApprovalNotFound`, and for one that does not wait `AlreadyDecided`, which says what was
    decided, also when the run has ended; or `RunEnded`, if it ended before anybody had decided.
    """
    approval = next((a for a in approvals_of(records) if a.call_id == call_id), None)
    if approval is None:
        raise ApprovalNotFound
    if approval.is_open:
        return approval
    if approval.decided is None and is_terminal(records[-1]):
        raise RunEnded
    raise AlreadyDecided(_decided_text(approval))


def is_decided_by(records: Sequence[Record], decided: ApprovalDecided) -> bool:
    """Whether this decision is the one on record; raises as `find_approval`, if another one is."""
    for approval in approvals_of(records):  # ids of decisions below are another agent's
        on_record = approval.decided if approval.call_id == decided.call_id else None
        if on_record and on_record.metadata["decision_id"] == decided.decision_id:
            return True
    find_approval(records, decided.call_id)
    return False


def decision_event(
    asked: ApprovalRequested, request: DecisionRequest, catalog: Catalog, decision_id: str
) -> ApprovalDecided:
    """Make the decision on a call that waits. Raises `InvalidRequest`, with the path."""
    if (request.arguments is not None) != (request.decision == "edit"):
        raise InvalidRequest("arguments belong to edit, and edit needs them", param="arguments")
    if (request.call is not None) != (request.decision == "replace"):
        raise InvalidRequest("a call belongs to replace, and replace needs it", param="call")
    call: Call | None = None
    if request.arguments is not None:
        call = _edited(asked.call, request.arguments, catalog)
    elif request.call is not None:
        call = _replaced(asked.call, request.call, catalog)
    return ApprovalDecided(
        asked.call.id,
        request.decision,
        decision_id,
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
        raise _invalid("a delegation has a task, a text that is not blank", f"{place}.task")
    return task


def _check(name: str, arguments: JSONObject, catalog: Catalog, place: str) -> None:
    tool = catalog.tool(name)
    if tool is None:
        raise _invalid(f"there is no tool {name!r}", "call.tool")
    if is_deep(arguments):  # a call of the model is bounded so too, and records cannot hold any
        raise _invalid(f"arguments may be nested at most {MAX_DEPTH} levels deep", place)
    if problem := check_arguments(tool, arguments, references_fit=False):
        path = problem.removeprefix(f"{tool.name}: ").partition(":")[0]
        raise _invalid(problem, path.replace("arguments", place, 1))


def _invalid(message: str, path: str) -> InvalidRequest:
    return InvalidRequest(message, param=path, code="invalid_arguments")


def _decided_text(approval: Approval) -> str:
    if approval.decided is None:
        return "the call does not wait any more: a message superseded it, or its run has ended"
    about = approval.decided.metadata
    who = "nobody, it expired" if about.get("is_expired") else about.get("subject") or "somebody"
    reason = f" ({about['reason']})" if about.get("reason") else ""
    return f"decided already: {approval.decided.content} by {who}{reason}"
