"""The events of an approval: a call waits for a decision, and somebody decides.

Not here: the other events (`events`), the rules of approvals (`approvals`).
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.loop.messages import Call

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
    `subject` is who decided, "" if nobody knows; one that `is_expired` nobody has decided.
    """

    call_id: str
    decision: Decision
    decision_id: str
    reason: str = ""
    call: Call | None = None
    subject: str = ""
    is_expired: bool = False
