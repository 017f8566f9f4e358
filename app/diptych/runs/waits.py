"""Finds and ends waits for approval and input, in a run and its child runs.

Events of children are validated, because people answer by them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias, cast

from diptych.core.codec import INPUT, Record, is_terminal
from diptych.core.errors import (
    AlreadyAnswered,
    AlreadyDecided,
    ApprovalNotFound,
    InputNotFound,
    RequestError,
    RunEnded,
    ToolError,
)
from diptych.core.events import ChildAnswered, ChildAsked, InputKind, InputRequest, WaitKind
from diptych.core.messages import JSON, ChildRun, Delegation, JSONObject
from diptych.core.text import well_formed
from diptych.core.waits import ANSWERS, CLOSING, REQUESTS, Wait, waits_of
from diptych.ports import ChildEvent, ChildReply
from diptych.runs.approvals import DecisionRequest
from diptych.runs.inputs import InputReply, checked_question

MAX_EXPIRY = 10.0**10  # seconds since the epoch
MAX_TEXT_CHARS = 4_096  # of a child's reasons
CALL_PATH = re.compile(r"[A-Za-z0-9_]{1,64}(\.[A-Za-z0-9_]{1,64}){0,6}")
_KINDS_BELOW = ("form", "url", "sign_in")  # callers' tools are not passed on to children
_ACTIONS = {
    "approval": ("approve", "reject", "edit", "replace"),
    "input": ("accept", "decline", "cancel"),
}

Reply: TypeAlias = DecisionRequest | InputReply


def find_open(records: Sequence[Record], call_id: str, kind: WaitKind) -> Wait:
    """Return a call's open approval or question.

    Raises `ApprovalNotFound` or `InputNotFound`, `AlreadyDecided` or `AlreadyAnswered`, or
    `RunEnded` if the run ended without an answer.
    """
    waits = reversed(waits_of(records, kind))
    wait = next((wait for wait in waits if wait.call_id == call_id), None)
    if wait is None or not wait.is_open:
        raise _over(records, kind, wait)
    return wait


def is_answered_by(records: Sequence[Record], asked: Record, answer_id: str) -> bool:
    """Whether this answer is logged; if the wait ended otherwise, raises as `find_open`."""
    wait = next((wait for wait in waits_of(records) if wait.requested.seq == asked.seq), None)
    if wait is None or not (wait.is_open or wait.answer_id == answer_id):
        raise _over(records, Wait(asked).kind, wait)
    return not wait.is_open


def _over(records: Sequence[Record], kind: WaitKind, wait: Wait | None) -> RequestError:
    """Return the error for an answer to a wait that is over, or never was."""
    is_approval = kind == "approval"
    if wait is None:
        return ApprovalNotFound() if is_approval else InputNotFound()
    second = AlreadyDecided if is_approval else AlreadyAnswered
    if wait.answered is None:
        if is_terminal(records[-1]):
            return RunEnded()
        return second("the call no longer waits: a message superseded it, or its run has ended")
    about = wait.answered.metadata
    who = "nobody (it expired)" if about.get("is_expired") else about.get("subject") or "somebody"
    reason = f" ({about['reason']})" if about.get("reason") else ""
    done = "decided" if is_approval else "answered"
    return second(f"already {done}: {wait.answered.content} by {who}{reason}")


def is_below(asked: Record) -> bool:
    """Whether the waiting call belongs to a child run."""
    return "path" in asked.metadata


def reply_below(asked: Record, reply: Reply) -> ChildReply:
    """Make the decision or answer to forward to the delegation's agent."""
    about: Any = asked.metadata
    _, _, call_id = about["call_id"].partition(".")
    return ChildReply(
        agent=str(about["agent"]),
        url=str(about["child"]["url"]),
        task_id=str(about["child"]["task_id"]),
        call_id=call_id,
        kind=reply.kind,
        body={k: v for k, v in asdict(reply).items() if k != "caller" and v not in ("", None)},
    )


def child_waits(
    call: Delegation, child: ChildRun, event: ChildEvent
) -> Iterator[ChildAsked | ChildAnswered]:
    """Yield what an event of a delegation's task says of calls that wait.

    Each agent logs what its children wait for under the path of calls, so the task's own events
    suffice. A result ends any wait of its call.
    """
    given = event.metadata.get("call_id")
    if event.path or not event.seq or not (isinstance(given, str) and CALL_PATH.fullmatch(given)):
        return
    call_id, about = f"{call.id}.{given}", event.metadata
    kind: WaitKind = "approval" if event.type.startswith("approval") else "input"
    if event.type in CLOSING:
        yield ChildAnswered("approval", call_id, event.seq)
        yield ChildAnswered("input", call_id, event.seq)
    elif event.type in REQUESTS:
        asked = (_call if kind == "approval" else _question)(event.content, about)
        at = about.get("expires_at")
        if asked and isinstance(at, int | float) and 0 < at < MAX_EXPIRY:
            content, shown = asked
            where = {"agent": call.agent, "url": child.url, "task_id": child.task_id}
            yield ChildAsked(kind, call_id, content, shown, float(at), seq=event.seq, **where)
    elif event.type in ANSWERS and event.content == "closed":
        yield ChildAnswered(kind, call_id, event.seq)
    elif event.type in ANSWERS and event.content in _ACTIONS[kind]:
        yield ChildAnswered(kind, call_id, event.seq, str(event.content), _answer(about))


def is_call(content: object) -> bool:
    """Whether content is a call in the form of records."""
    match content:
        case {"tool": str(), "arguments": dict()} | {"agent": str(), "task": str()}:
            return True
        case _:
            return False


def _call(content: JSON, about: Mapping[str, JSON]) -> tuple[JSON, JSONObject] | None:
    """Return a call that needs approval, and what people must know; None if invalid."""
    step = about.get("step")
    if not (is_call(content) and isinstance(step, int)):
        return None
    return content, {"step": step, **_texts(about, "reason")}


def _question(content: JSON, about: Mapping[str, JSON]) -> tuple[JSON, JSONObject] | None:
    """Return a question's message and its other fields; None if invalid."""
    kind, schema, url = about.get("kind"), about.get("schema"), about.get("url", "")
    is_known = kind in _KINDS_BELOW and isinstance(schema, dict | None)
    if not (is_known and isinstance(content, str) and isinstance(url, str)):
        return None
    request = InputRequest(cast("InputKind", kind), content, cast("JSONObject | None", schema), url)
    try:
        request = checked_question(request)
    except ToolError:
        return None
    return request.message, INPUT.write(request)


def _answer(about: Mapping[str, JSON]) -> JSONObject:
    """Return what is shown of an answer."""
    found = _texts(about, "decision_id", "input_id", "reason", "subject")
    if is_call(about.get("call")):
        found["call"] = about["call"]
    if about.get("is_expired") is True:
        found["is_expired"] = True
    return found


def _texts(about: Mapping[str, JSON], *names: str) -> dict[str, JSON]:
    given = {name: about.get(name) for name in names}
    return {
        k: well_formed(v[:MAX_TEXT_CHARS]) for k, v in given.items() if isinstance(v, str) and v
    }
