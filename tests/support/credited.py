"""A world in which runs get credit although little is left: each takes it where it can."""

from diptych.runtime import estimate, shared_budget_meter


def near_the_end(patch):
    """Have requests look small, and credit be asked for wherever anything is left."""
    for scope in estimate.MARGINS:
        patch.setitem(estimate.MARGINS, scope, 1)
    patch.setattr(estimate, "CALLS_AHEAD", 3)
    patch.setattr(shared_budget_meter, "_MANY", 1)
    patch.setattr(estimate, "_UNKNOWN_OVERHEAD", 10)
    patch.setattr(estimate, "_REPLY_TOKENS", 30)
