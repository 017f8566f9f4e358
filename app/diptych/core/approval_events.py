"""The events of an approval: a call waits for a decision, and somebody decides."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.core.messages import Call, JSONObject

Decision: TypeAlias = Literal["approve", "reject", "edit", "replace"]
"""What somebody who is asked may say: make the call, make none, make it otherwise, make another."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A call with its references filled waits for somebody to decide on it (loop.md §6).

    `reason` is why it is asked about. Without a decision it is rejected at `expires_at`, in
    seconds since the epoch.
    """

    call: Call
    step: int
    reason: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """Somebody has decided on a call that waits; the first decision counts.

    `decision_id` tells it from others. `call` is what is made in place of the one that was asked
    about: the same with other arguments (`edit`), or another one (`replace`), under the same id.
    `subject` is who decided, "" if nobody knows; one that `is_expired` nobody has decided. If that
    is only what an agent says that passed the decision on, `caller` is that agent.
    """

    call_id: str
    decision: Decision
    decision_id: str
    reason: str = ""
    call: Call | None = None
    subject: str = ""
    is_expired: bool = False
    caller: str = ""


@dataclass(frozen=True, slots=True)
class ChildApprovalRequested:
    """A call of a run below this one waits for somebody to decide on it, as its agent says.

    `path` holds the ids of the calls that lead there: a delegation of this run first, the call
    that waits last. `content` is that call as a record has it. `agent` is whom the delegation
    called, `url` and `task_id` name its task, which a decision is sent to. The agent that has the
    call rejects it at `expires_at`, in seconds since the epoch.
    """

    path: tuple[str, ...]
    content: JSONObject
    step: int
    reason: str
    expires_at: float
    agent: str
    url: str
    task_id: str


@dataclass(frozen=True, slots=True)
class ChildApprovalDecided:
    """A call of a run below waits no more. The fields are those of `ApprovalDecided`.

    `decision` is "closed" if nobody decided: a message superseded the call, or its run ended.
    `content` is what is made in its place, if that is another call.
    """

    path: tuple[str, ...]
    decision: Decision | Literal["closed"]
    decision_id: str = ""
    reason: str = ""
    content: JSONObject | None = None
    subject: str = ""
    is_expired: bool = False


ChildApproval: TypeAlias = ChildApprovalRequested | ChildApprovalDecided


def approval_id(path: tuple[str, ...]) -> str:
    """Give the id by which a call below is decided on in this run: its path, joined by dots."""
    return ".".join(path)
