"""Whether what arrives at a run is stale: it comes too late, or a second time."""

from diptych.core.decisions import may_take
from diptych.core.events import (
    ApprovalDecided,
    CallJudged,
    ChildApprovalDecided,
    ChildApprovalRequested,
    MessageQueued,
    QueueCleared,
)
from diptych.core.queues import takes
from diptych.core.state import Run, calls_awaiting_decision


def is_stale(run: Run, item: object) -> bool:
    """Whether an item of a run's inbox is to be dropped."""
    match item:
        case MessageQueued() | QueueCleared():
            return not takes(run, item)
        case ApprovalDecided(call_id):
            return call_id not in calls_awaiting_decision(run)
        case CallJudged(call_id):
            return call_id not in run.progress.awaiting_hooks
        case ChildApprovalRequested() | ChildApprovalDecided():
            return not may_take(run, item)
        case _:
            return False
