"""The schemas of what the agent replies. They describe; no reply is built or checked with them.

A test compares them with real replies. Not here: the bodies of requests (`http.bodies`), what the
replies are made of (`http.views`, `http.chat.completion`).
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def _without_null(schema: dict[str, Any]) -> None:
    """Say that what is not required is left out, where pydantic says that it is null."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()) and "anyOf" in field:
            (field_type,) = [each for each in field.pop("anyOf") if each != {"type": "null"}]
            del field["default"]
            field.update(field_type)


_CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, json_schema_extra=_without_null)


class Reply(BaseModel):
    """Has no other fields than those named."""

    model_config = _CONFIG


class ChatUsage(Reply):
    """The tokens of all of a run's own model calls, as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class RunError(Reply):
    """Why a run has no answer."""

    code: str
    """`aborted`, or the code of the failure; those of HTTP errors among them."""
    message: str


RunStatus = Literal[
    "queued", "running", "input-required", "completed", "failed", "aborted", "max_steps"
]


class Approval(Reply):
    """A call that waits for somebody's decision, or waited for one."""

    object: Literal["approval"]
    run_id: str
    session_id: str
    call_id: str
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
    decided_by: str | None = None
    """The subject that decided, where it is known."""
    decision_reason: str | None = None
    made_as: dict[str, Any] | None = None
    """The call that was made in its place."""


class ApprovalList(Reply):
    """What waits for decisions."""

    object: Literal["list"]
    data: list[Approval]


class Run(Reply):
    """A run. What depends on its record is left out in lists and of a run that has just started."""

    id: str
    object: Literal["run"]
    session_id: str
    status: RunStatus
    """The last four are the terminal events. `queued`: an earlier run of its session goes first.
    `input-required`: a call waits for somebody's decision."""
    created_at: str = Field(json_schema_extra={"format": "date-time"})
    updated_at: str = Field(json_schema_extra={"format": "date-time"})
    """The time of its newest event."""
    last_seq: int = Field(ge=1)
    """The id of its newest event."""
    resumes: str | None = None
    """The id of the run that this one takes up."""
    approvals: list[Approval] | None = None
    """The calls of it that somebody was asked about."""
    text: str | None = None
    """The answer so far, until the run ends."""
    answer: str | None = None
    """The whole answer, if there is one. Two turns of it have a blank line between them."""
    finish_reason: str | None = None
    """Of the model, or `length` if the run reached its `maxSteps`."""
    usage: dict[str, int] | None = None
    """The tokens of all of its model calls, once the run has given an answer."""
    error: RunError | None = None
    """Of a run that failed or was aborted."""


class RunList(Reply):
    """Runs, the oldest first."""

    object: Literal["list"]
    data: list[Run]
    has_more: bool
    """Whether there are older ones: give the first id as `before` to read them."""


class Event(Reply):
    """A fact of a run, as its record holds it."""

    event_type: str
    seq: int = Field(ge=1)
    """Counts a run's events from 1."""
    run_id: str
    session_id: str
    timestamp: str = Field(json_schema_extra={"format": "date-time"})
    content: Any
    """Text in most events."""
    metadata: dict[str, Any]


class EventList(Reply):
    """Events of one session, or of all, the oldest first."""

    agent: str
    events: list[Event]
    total: int
    """How many there are; the list holds the last `limit` of them."""


class Session(Reply):
    """A conversation."""

    session_id: str
    runs: int
    events: int
    created_at: str = Field(json_schema_extra={"format": "date-time"})
    updated_at: str = Field(json_schema_extra={"format": "date-time"})


class SessionList(Reply):
    """All sessions."""

    agent: str
    sessions: list[Session]
    total: int


class Health(Reply):
    """The process is alive."""

    status: Literal["ok"]
    agent: str


class Missing(Reply):
    """A tool server, an agent or a key that the agent does without now."""

    kind: str
    name: str
    reason: str


class Ready(Reply):
    """Whether the agent takes work. All but `status` and `agent` needs the right to `read`."""

    status: Literal["ready", "not ready"]
    agent: str
    reason: str | None = None
    """Why not; empty if it does."""
    missing: list[Missing] | None = None
    notes: list[str] | None = None
    action_format: Literal["json", "native"] | None = None
    """How runs that start now ask the model for calls."""
