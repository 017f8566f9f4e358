"""Approvals of calls in a run and its child runs: read from records, and decided.

Events of children are validated, because people decide by them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from diptych.core.catalog import Catalog
from diptych.core.codec import Record
from diptych.core.errors import AlreadyDecided, ApprovalNotFound, InvalidRequest
from diptych.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    ChildApproval,
    ChildApprovalDecided,
    ChildApprovalRequested,
    Decision,
)
from diptych.core.messages import Call, ChildRun, Delegation, JSONObject, ToolCall
from diptych.core.reading.arguments import check_arguments
from diptych.core.reading.strict_json import MAX_DEPTH, is_deep
from diptych.core.text import well_formed
from diptych.core.waits import CLOSING, Wait, approvals_of
from diptych.ports import ChildEvent
from diptych.runs.waits import CALL_PATH, MAX_EXPIRY, find_open

MAX_REASON_CHARS = 4_096


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """A request to decide on a waiting call.

    `arguments` belong to `edit` (for a delegation, `{"task": …}`), `call` to `replace`: `{"tool":
    …, "arguments": …}` or `{"agent": …, "task": …}`. `subject` and `caller` are as in
    `ApprovalDecided`.
    """

    decision: Decision
    reason: str = ""
    arguments: JSONObject | None = None
    call: JSONObject | None = None
    subject: str = ""
    caller: str = ""


def find_approval(records: Sequence[Record], call_id: str) -> Wait:
    """Return a call's open approval.

    Raises `ApprovalNotFound`, `AlreadyDecided`, or `RunEnded` if the run ended undecided.
    """
    waits = approvals_of(records)
    return find_open(records, waits, call_id, ApprovalNotFound, AlreadyDecided)


def is_decided_by(records: Sequence[Record], decided: ApprovalDecided) -> bool:
    """Whether this decision is logged; if another one is, raises as `find_approval`."""
    for approval in approvals_of(records):
        on_record = approval.answered if approval.call_id == decided.call_id else None
        if on_record and on_record.metadata["decision_id"] == decided.decision_id:
            return True
    find_approval(records, decided.call_id)
    return False


def decision_event(
    asked: ApprovalRequested, request: DecisionRequest, catalog: Catalog, decision_id: str
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
        decision_id,
        request.reason,
        call,
        request.subject,
        caller=request.caller,
    )


def child_approval(call: Delegation, child: ChildRun, event: ChildEvent) -> ChildApproval | None:
    """Return the approval event in an event of a delegation's task, if any.

    Each agent logs the approvals of its children under the path of calls, so the task's own events
    suffice.
    """
    call_id = event.metadata.get("call_id")
    if event.path or not (isinstance(call_id, str) and CALL_PATH.fullmatch(call_id)):
        return None
    path = (call.id, *call_id.split("."))
    if event.type == "approval_requested":
        return _requested(path, call, child, event)
    if event.type == "approval_decided":
        return _decided(path, event)
    return ChildApprovalDecided(path, "closed") if event.type in CLOSING else None


def is_call(content: object) -> bool:
    """Whether content is a call in the form of records."""
    match content:
        case {"tool": str(), "arguments": dict()} | {"agent": str(), "task": str()}:
            return True
        case _:
            return False


def _requested(
    path: tuple[str, ...], call: Delegation, child: ChildRun, event: ChildEvent
) -> ChildApproval | None:
    about: Mapping[str, Any] = event.metadata
    step, expires_at = about.get("step"), about.get("expires_at")
    if not (
        is_call(event.content)
        and isinstance(step, int)
        and isinstance(expires_at, int | float)
        and 0 < expires_at < MAX_EXPIRY
    ):
        return None
    return ChildApprovalRequested(
        path,
        cast("JSONObject", event.content),
        step,
        _text(about.get("reason")),
        float(expires_at),
        call.agent,
        child.url,
        child.task_id,
    )


def _decided(path: tuple[str, ...], event: ChildEvent) -> ChildApproval | None:
    about: Mapping[str, Any] = event.metadata
    made_as = about.get("call")
    match event.content:
        case "closed":
            return ChildApprovalDecided(path, "closed")
        case "approve" | "reject" | "edit" | "replace" as decision:
            return ChildApprovalDecided(
                path,
                decision,
                _text(about.get("decision_id")),
                _text(about.get("reason")),
                made_as if is_call(made_as) else None,
                _text(about.get("subject")),
                about.get("is_expired") is True,
            )
        case _:
            return None


def _text(value: object) -> str:
    return well_formed(value[:MAX_REASON_CHARS]) if isinstance(value, str) else ""


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
