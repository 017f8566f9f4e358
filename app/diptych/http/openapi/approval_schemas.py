"""The schemas of approvals."""

from typing import Any, Literal

from pydantic import Field

from diptych.http.openapi.reply import Reply


class Approval(Reply):
    """A call that waits for somebody's decision, or waited for one."""

    object: Literal["approval"]
    run_id: str
    session_id: str
    call_id: str
    path: list[str]
    """The ids of the calls that lead to it: of a call of the run itself, only its own."""
    agent: str | None = None
    """Of a call of a run below: the agent to which the first call of the path delegated."""
    call: dict[str, Any]
    """`tool` and `arguments`, or `agent` and `task`."""
    step: int
    reason: str
    """Why it is asked about."""
    status: Literal["waiting", "decided", "closed"]
    """`closed`: a message superseded the call, or its run ended."""
    requested_at: str = Field(json_schema_extra={"format": "date-time"})
    expires_at: str = Field(json_schema_extra={"format": "date-time"})
    """When the call is rejected if nobody has decided."""
    decision: Literal["approve", "reject", "edit", "replace"] | None = None
    decided_at: str | None = Field(None, json_schema_extra={"format": "date-time"})
    passed_on_by: str | None = None
    """The agent that passed the decision on, if one did: then `decided_by` is its word."""
    decided_by: str | None = None
    """The subject that decided, where it is known."""
    decision_reason: str | None = None
    made_as: dict[str, Any] | None = None
    """The call that was made in its place."""


class ApprovalList(Reply):
    """What waits for decisions."""

    object: Literal["list"]
    data: list[Approval]
