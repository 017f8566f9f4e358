"""Approvals as the current caller may see and decide them (access.md, the right `approve`).

To who may neither approve nor read, a foreign run is the same as an unknown one. Nobody decides
on a run that it began, or that was begun on its behalf, unless the manifest's `access.approveOwn`
says so.
"""

from collections.abc import Sequence
from dataclasses import replace

from diptych.access.caller import Caller, OwnRun, current_caller
from diptych.access.grants import Right
from diptych.core.approval_records import Approval, open_approvals
from diptych.core.codec import Record
from diptych.core.errors import RunLost, RunNotFound
from diptych.http.audit import audited
from diptych.http.own_entries import own_entries
from diptych.ports.entries import RunEntry
from diptych.runs.decision_request import DecisionRequest
from diptych.runs.service import RunService


class GuardedApprovals:
    """The approvals of an agent's runs, for the current caller."""

    def __init__(self, runs: RunService) -> None:
        self._runs = runs

    async def open_approvals(self, limit: int) -> Sequence[Approval]:
        """List what waits in at most `limit` runs that the caller may see, the newest run first."""
        found: list[Approval] = []
        for entry in await self._runs_awaiting_decision(current_caller(), limit):
            try:
                found += open_approvals(await self._runs.records(entry.run_id))
            except (RunNotFound, RunLost):
                continue  # it was removed meanwhile
        return found

    async def _runs_awaiting_decision(self, caller: Caller, limit: int) -> Sequence[RunEntry]:
        if caller.may(Right.APPROVE) or caller.may(Right.READ):
            return await self._runs.runs_awaiting_decision(limit)
        return await own_entries(caller, self._runs.runs_awaiting_decision, None, limit)

    async def decide(self, run_id: str, call_id: str, request: DecisionRequest) -> Sequence[Record]:
        """Decide on a call; see `RunService.decide`. Raises `Forbidden`, `RunNotFound` too."""
        caller = current_caller()
        with audited(caller, Right.APPROVE, "decide", run_id) as noted:
            noted.call = call_id
            wanted = _of_caller(request, caller)
            await self._check_may_decide(caller, run_id, wanted)
            noted.decision, noted.why = request.decision, request.reason
            records = await self._runs.decide(run_id, call_id, wanted)
            noted.outcome = request.decision
        return records

    async def _check_may_decide(self, caller: Caller, run_id: str, wanted: DecisionRequest) -> None:
        entry = await self._runs.entry(run_id)
        if not caller.may(Right.APPROVE):
            if not (caller.may(Right.READ) or (caller.rights and caller.owns(entry.session_id))):
                raise RunNotFound
            caller.require(Right.APPROVE)
        first, *_ = await self._runs.records(run_id)
        if caller.subject is None or caller.approves_own:
            return
        # Whom a caller says to work for is no other who could decide on what it began itself; but
        # an agent that may approve passes on what somebody else has decided (decision 153).
        subject, began = (first.metadata.get(name) for name in ("subject", "caller"))
        if wanted.subject in {subject, began}:
            raise OwnRun(is_on_behalf=bool(began) and wanted.subject != began)


def _of_caller(request: DecisionRequest, caller: Caller) -> DecisionRequest:
    """Give a decision as the caller's, or as that of whom an agent says that it is passed on for.

    From anybody but an agent no other name is taken.
    """
    if caller.subject is None:
        return replace(request, subject="", caller="")
    if request.subject and caller.subject.kind == "agent":
        return replace(request, caller=str(caller.subject))
    return replace(request, subject=str(caller.subject), caller="")
