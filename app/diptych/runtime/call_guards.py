"""What stands between a call that is ready and its effect: the policy, then the run's budget.

Not here: rules and conditions (`diptych.policy`), what is left (`loop.spending`), who is asked what
(`loop.approval_decisions`).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from diptych.loop.approval_events import ApprovalRequested
from diptych.loop.call_graph import failure
from diptych.loop.commands import MakeCall
from diptych.loop.events import Failed, Returned
from diptych.loop.spending import denied_call
from diptych.loop.state import Run
from diptych.loop.stuck import repeats, stuck_at
from diptych.policy.rules import Policy, RunCaller

Withheld: TypeAlias = Returned | ApprovalRequested
"""What happens in place of a call that is not made now: it is denied, or waits for a decision."""


class CallGuards:
    """The guards of one run's calls; `now` gives seconds since the epoch."""

    def __init__(self, policy: Policy, run_id: str, now: Callable[[], float]) -> None:
        self._policy = policy
        self._run_id = run_id
        self._now = now

    def outcome(
        self, run: Run, command: MakeCall, before: Sequence[MakeCall]
    ) -> Withheld | Failed | None:
        """Say what happens in place of a call; None if it is made, `Failed` if it ends the run.

        `before` are the calls that are about to be made, and not begun.
        """
        caller = RunCaller(
            self._run_id, run.caller or run.subject, run.subject if run.caller else ""
        )
        call, is_approved, times = command.call, command.is_approved, repeats(run, command.call)
        verdict = self._policy.verdict(
            call, run.catalog, caller, is_approved=is_approved, repeats=times
        )
        match verdict.outcome:
            case "ask":
                expires_at = self._now() + verdict.expires
                return ApprovalRequested(call, command.step, verdict.reason, expires_at)
            case "deny":
                return failure(call, "denied", f"denied: {verdict.reason}")
            case "stuck":
                return stuck_at(call, verdict.reason)
            case "allow":
                return denied_call(run, command, before)
