"""What the events of a child say of calls that wait, at it or below it.

Each agent records what waits below it under the path of calls that leads there, so an event of the
child itself says all. What a child sends is checked: people are shown it, and decide by it.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from diptych.core.events import (
    ChildApproval,
    ChildApprovalDecided,
    ChildApprovalRequested,
)
from diptych.core.messages import Call, ChildRun
from diptych.core.text import well_formed
from diptych.ports import ChildEvent
from diptych.runs.call_notices import target

MAX_DEPTH = 8
MAX_REASON_CHARS = 4_096
MAX_EXPIRY = 10.0**10  # seconds since the epoch
_ID = re.compile(r"[A-Za-z0-9_]{1,64}(\.[A-Za-z0-9_]{1,64}){0,6}")
_DECISIONS = frozenset({"approve", "reject", "edit", "replace"})
_RESULTS = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})


def child_approval(call: Call, child: ChildRun, event: ChildEvent) -> ChildApproval | None:
    """Give what an event of a delegation's own task says of a call that waits; None if nothing."""
    call_id = event.metadata.get("call_id")
    if event.path or not (isinstance(call_id, str) and _ID.fullmatch(call_id)):
        return None
    path = (call.id, *call_id.split("."))
    if event.type == "approval_requested":
        return _requested(path, call, child, event)
    if event.type == "approval_decided":
        return _decided(path, event)
    return ChildApprovalDecided(path, "closed") if event.type in _RESULTS else None


def is_call(content: object) -> bool:
    """Whether content is a call as records have it, which a person can be shown."""
    match content:
        case {"tool": str(), "arguments": dict()} | {"agent": str(), "task": str()}:
            return True
        case _:
            return False


def _requested(
    path: tuple[str, ...], call: Call, child: ChildRun, event: ChildEvent
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
    content = cast("Mapping[str, Any]", event.content)
    return ChildApprovalRequested(
        path,
        content,
        step,
        _text(about.get("reason")),
        float(expires_at),
        target(call),
        child.url,
        child.task_id,
    )


def _decided(path: tuple[str, ...], event: ChildEvent) -> ChildApproval | None:
    about: Mapping[str, Any] = event.metadata
    if event.content == "closed":
        return ChildApprovalDecided(path, "closed")
    if not isinstance(event.content, str) or event.content not in _DECISIONS:
        return None
    made_as = about.get("call")
    return ChildApprovalDecided(
        path,
        cast("Any", event.content),
        _text(about.get("decision_id")),
        _text(about.get("reason")),
        made_as if is_call(made_as) else None,
        _text(about.get("subject")),
        about.get("is_expired") is True,
    )


def _text(value: object) -> str:
    return well_formed(value[:MAX_REASON_CHARS]) if isinstance(value, str) else ""
