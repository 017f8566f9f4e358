"""The rows of approvals on record, written and read."""

from collections.abc import Mapping
from typing import Any

from diptych.core.approval_events import (
    ApprovalDecided,
    ApprovalRequested,
    ChildApprovalDecided,
    ChildApprovalRequested,
    approval_id,
)
from diptych.core.event_rows import Stored, call_content, call_metadata, read_call
from diptych.core.messages import JSON


def child_requested_row(event: ChildApprovalRequested) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a call below that waits for a decision."""
    about: dict[str, JSON] = {
        "call_id": approval_id(event.path),
        "path": list(event.path),
        "step": event.step,
        "expires_at": event.expires_at,
        "agent": event.agent,
        "child": {"url": event.url, "task_id": event.task_id},
    }
    if event.reason:
        about["reason"] = event.reason
    return "approval_requested", event.content, about


def child_decided_row(event: ChildApprovalDecided) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of what was decided on such a call."""
    about: dict[str, JSON] = {"call_id": approval_id(event.path), "path": list(event.path)}
    given: dict[str, JSON] = {
        "decision_id": event.decision_id,
        "reason": event.reason,
        "call": event.content,
        "subject": event.subject,
        "is_expired": event.is_expired,
    }
    return "approval_decided", event.decision, about | {k: v for k, v in given.items() if v}


def _read_child_requested(content: Stored, metadata: Mapping[str, Any]) -> ChildApprovalRequested:
    child = metadata["child"]
    return ChildApprovalRequested(
        tuple(metadata["path"]),
        content,
        metadata["step"],
        metadata.get("reason", ""),
        metadata["expires_at"],
        metadata["agent"],
        child["url"],
        child["task_id"],
    )


def _read_child_decided(content: Stored, metadata: Mapping[str, Any]) -> ChildApprovalDecided:
    return ChildApprovalDecided(
        tuple(metadata["path"]),
        content,
        metadata.get("decision_id", ""),
        metadata.get("reason", ""),
        metadata.get("call"),
        metadata.get("subject", ""),
        metadata.get("is_expired", False),
    )


def requested_row(event: ApprovalRequested) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a call that waits for a decision."""
    about = {**call_metadata(event.call, event.step), "expires_at": event.expires_at}
    if event.reason:
        about["reason"] = event.reason
    return "approval_requested", call_content(event.call), about


def read_requested(
    content: Stored, metadata: Mapping[str, Any]
) -> ApprovalRequested | ChildApprovalRequested:
    """Read such a row back."""
    if "path" in metadata:
        return _read_child_requested(content, metadata)
    call = read_call(content, metadata)
    reason = metadata.get("reason", "")
    return ApprovalRequested(call, metadata["step"], reason, metadata["expires_at"])


def decided_row(event: ApprovalDecided) -> tuple[str, JSON, dict[str, JSON]]:
    """The row of a decision; with a call that is changed, the whole of it."""
    about: dict[str, JSON] = {"call_id": event.call_id, "decision_id": event.decision_id}
    given: dict[str, JSON] = {
        "reason": event.reason,
        "subject": event.subject,
        "is_expired": event.is_expired,
        "caller": event.caller,
    }
    about |= {name: value for name, value in given.items() if value}
    if event.call:
        labels = call_metadata(event.call, 0)
        about["call"] = call_content(event.call)
        about |= {name: labels[name] for name in ("id", "after") if name in labels}
    return "approval_decided", event.decision, about


def read_decided(
    content: Stored, metadata: Mapping[str, Any]
) -> ApprovalDecided | ChildApprovalDecided:
    """Read such a row back."""
    if "path" in metadata:
        return _read_child_decided(content, metadata)
    call = metadata.get("call")
    return ApprovalDecided(
        metadata["call_id"],
        content,
        metadata["decision_id"],
        metadata.get("reason", ""),
        read_call(call, metadata) if call else None,
        metadata.get("subject", ""),
        metadata.get("is_expired", False),
        metadata.get("caller", ""),
    )
