"""The schemas of what the agent replies. They describe; no reply is built or checked with them.

A test compares them with real replies.
"""

from typing import Any, Literal

from pydantic import Field

from diptych.http.openapi.approval_schemas import Approval
from diptych.http.openapi.reply import Reply


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


class BudgetState(Reply):
    """What of a budget is used and left. Money is a decimal string, `wall_clock` is in ms."""

    used: dict[str, int | str]
    limits: dict[str, int | str]
    left: dict[str, int | str]


class WaitingMessage(Reply):
    """A message that has not joined a run's conversation."""

    message: str
    sent_by: str | None = None
    """The subject that sent it, if it is known."""


class Queue(Reply):
    """The messages that wait in a run, in the order in which they came."""

    steer: list[WaitingMessage]
    """Those that join before the next request to the model."""
    follow_up: list[WaitingMessage]
    """Those that begin a turn when the one before has its answer."""


class ClearedQueue(Reply):
    """The messages that were dropped from a run's queues."""

    queue: Queue


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
    queue: Queue | None = None
    """The messages that wait in it, when one run is read that has not ended."""
    text: str | None = None
    """The answer so far, until the run ends."""
    answer: str | None = None
    """The whole answer, if there is one. Two turns of it have a blank line between them."""
    finish_reason: str | None = None
    """Of the model, or `length` if the run reached its `maxSteps`."""
    usage: dict[str, int] | None = None
    """The tokens of all of its model calls, once the run has given an answer."""
    children_usage: dict[str, int] | None = None
    """The tokens that its delegations used with all below them, as those agents say."""
    error: RunError | None = None
    """Of a run that failed or was aborted."""
    budget: dict[Literal["run", "session", "day"], BudgetState] | None = None
    """What is used and left of what the run may use, alone and with others, as far as that is
    limited."""


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
    """How many there are; the list holds at most the last `limit` of them."""
    next_before: str | None
    """As `before`, gives the page of older events; null if there are none."""


class Session(Reply):
    """A conversation."""

    session_id: str
    owner: str | None = None
    """Whose it is: a subject. Left out where nobody asks who asks."""
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
    """What the agent does without now: a tool server, an agent, a key, the effect of a rule."""

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
