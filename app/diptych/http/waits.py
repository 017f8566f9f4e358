"""`/v1/approvals` and decisions on waiting calls.

Without `approve` or `read`, other callers' runs look unknown. Callers cannot decide on runs that
they or their delegates started, unless the manifest sets `access.approveOwn`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

from diptych.access.caller import Caller, OwnRun, current_caller
from diptych.access.grants import Right
from diptych.core.codec import Record
from diptych.core.errors import RunLost, RunNotFound
from diptych.core.text import well_formed
from diptych.core.waits import Wait, approvals_of, open_waits
from diptych.http.audit import audited
from diptych.http.bodies import Body, json_router
from diptych.http.guarded_runs import own_entries
from diptych.http.openapi import reply
from diptych.http.views import approval_view
from diptych.runs.approvals import DecisionRequest
from diptych.runs.inputs import InputReply
from diptych.runs.service import RunService

Limit = Annotated[int, Query(ge=1, le=1_000, description="How many runs, at most.")]
_DECIDED = reply(
    "Approval",
    "The approval, decided; or `closed`, if the run ended while it was decided below.",
    403,
    409,
    422,
    accepted="The agent below that has the call has decided so; this run does not know it yet.",
)


class DecisionBody(Body):
    """`POST /v1/runs/{id}/approvals/{call_id}`. A field that is null counts as absent."""

    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "reject", "edit", "replace"] = Field(
        description="`approve`: make the call. `reject`: make none. `edit`: make it with other "
        "`arguments`. `replace`: make another `call` in its place."
    )
    reason: str | None = Field(
        None, max_length=4096, description="Of a rejection: the model reads it."
    )
    arguments: dict[str, Any] | None = Field(
        None, description='Of `edit`: the new arguments; of a delegation `{"task": text}`.'
    )
    call: dict[str, Any] | None = Field(
        None,
        description='Of `replace`: `{"tool": name, "arguments": {…}}` or '
        '`{"agent": name, "task": text}`.',
    )
    subject: str | None = Field(
        None,
        max_length=512,
        description="Of an agent that passes a decision on: whose it is. It is recorded beside the "
        "agent, and gives no right.",
    )

    def request(self) -> DecisionRequest:
        """Return the decision that this asks for."""
        reason, subject = well_formed(self.reason or ""), well_formed(self.subject or "")
        return DecisionRequest(self.decision, reason, self.arguments, self.call, subject)


def approval_routes(runs: RunService) -> APIRouter:
    """Return the routes of approvals."""
    router = json_router()
    approvals = GuardedApprovals(runs)

    @router.get("/v1/approvals", **reply("ApprovalList", "The calls that wait."))
    async def list_approvals(limit: Limit = 100) -> dict[str, Any]:
        """List the calls that wait for a decision, on all replicas."""
        found = await approvals.open_approvals(limit)
        return {"object": "list", "data": [approval_view(approval) for approval in found]}

    @router.post("/v1/runs/{run_id}/approvals/{call_id}", **_DECIDED)
    async def decide(
        response: Response, run_id: str, call_id: str, body: DecisionBody
    ) -> dict[str, Any]:
        """Decide on a waiting call, whichever replica executes its run.

        The first decision counts; the reply comes once it is recorded.
        """
        records = await approvals.decide(run_id, call_id, body.request())
        found = next(a for a in approvals_of(records) if a.call_id == call_id)
        if found.answered:
            return approval_view(found)
        if found.is_open:
            response.status_code = 202  # decided below, and known here as soon as that comes up
        return approval_view(found) | {"decision": body.decision}

    return router


class GuardedApprovals:
    """Approvals of an agent's runs, filtered by the current caller's rights."""

    def __init__(self, runs: RunService) -> None:
        self._runs = runs

    async def open_approvals(self, limit: int) -> Sequence[Wait]:
        """List the waiting calls of up to `limit` visible runs, newest run first."""
        waits = await visible_waits(self._runs, limit, Right.APPROVE)
        return [wait for wait in waits if wait.is_for_approval]

    async def decide(self, run_id: str, call_id: str, request: DecisionRequest) -> Sequence[Record]:
        """Decide on a call; see `RunService.decide`. Raises `Forbidden`, `RunNotFound` too."""
        caller = current_caller()
        with audited(caller, Right.APPROVE, "decide", run_id) as noted:
            noted.call = call_id
            wanted = of_caller(request, caller)
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
        # A caller's word for whom it works lets nobody decide on what it began itself; but an
        # agent that may approve passes on what somebody else has decided (decision 153).
        subject, began = (first.metadata.get(name) for name in ("subject", "caller"))
        if wanted.subject in {subject, began}:
            raise OwnRun(is_on_behalf=bool(began) and wanted.subject != began)


async def visible_waits(runs: RunService, limit: int, right: Right) -> Sequence[Wait]:
    """List the open waits of up to `limit` runs, newest first.

    Without `right` or `read`, callers see only their own runs.
    """
    caller, found = current_caller(), list[Wait]()
    if caller.may(right) or caller.may(Right.READ):
        entries = await runs.waiting_runs(limit)
    else:
        entries = await own_entries(caller, runs.waiting_runs, None, limit)
    for entry in entries:
        try:
            found += open_waits(await runs.records(entry.run_id))
        except (RunNotFound, RunLost):
            continue  # it was removed meanwhile
    return found


Request = TypeVar("Request", DecisionRequest, InputReply)


def of_caller(request: Request, caller: Caller) -> Request:
    """Return a decision or an answer in the caller's name, or in that of the subject for whom an
    agent passes it on. Only agents may pass them on.
    """
    if caller.subject is None:
        return replace(request, subject="", caller="")
    if request.subject and caller.subject.kind == "agent":
        return replace(request, caller=str(caller.subject))
    return replace(request, subject=str(caller.subject), caller="")
