"""Calls of runs below that wait for a decision: kept in the run, which does nothing about them.

The agent that has the call waits, decides and expires; this run says what waits, and that it
waits no more. So it is the same rule at every depth.
"""

from diptych.core.approval_events import ChildApproval, ChildApprovalRequested
from diptych.core.state import Run, open_calls, updated

MAX_OPEN = 1_000  # calls below one run


def may_take(run: Run, event: ChildApproval) -> bool:
    """Whether an event is news: of a delegation in flight, and of a call that waits, or not yet.

    Who takes a delegation up is told all of it again, and a call waits only once.
    """
    delegation = event.path[0]
    is_in_flight = delegation in run.started and delegation in open_calls(run)
    is_known = any(each.path == event.path for each in run.child_approvals)
    if isinstance(event, ChildApprovalRequested):
        is_news = not is_known and event.path not in run.children_decided
        return is_in_flight and is_news and len(run.child_approvals) < MAX_OPEN
    return is_known


def take(run: Run, event: ChildApproval) -> Run:
    """Keep a call that waits, or let go of one that waits no more."""
    others = tuple(each for each in run.child_approvals if each.path != event.path)
    if isinstance(event, ChildApprovalRequested):
        return updated(run, child_approvals=(*others, event))
    decided = run.children_decided | {event.path}
    return updated(run, child_approvals=others, children_decided=decided)
