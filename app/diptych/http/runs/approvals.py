"""`/v1/approvals` and `/v1/runs/{id}/approvals/{call_id}`: calls that wait for a decision."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from diptych.core.approval_records import approvals_of
from diptych.core.text import well_formed
from diptych.http.approvals import GuardedApprovals
from diptych.http.bodies import DecisionBody, read_body
from diptych.http.openapi import operations
from diptych.http.views import approval_view
from diptych.runs.decision_request import DecisionRequest

MAX_LIMIT = 1_000
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many runs, at most.")]


def approval_routes(approvals: GuardedApprovals) -> APIRouter:
    """Give the routes of approvals."""
    router = APIRouter()

    @router.get("/v1/approvals", **operations.LIST_APPROVALS)
    async def list_approvals(limit: Limit = 100) -> dict[str, Any]:
        found = await approvals.open_approvals(limit)
        return {"object": "list", "data": [approval_view(approval) for approval in found]}

    @router.post("/v1/runs/{run_id}/approvals/{call_id}", **operations.DECIDE)
    async def decide(
        request: Request, response: Response, run_id: str, call_id: str
    ) -> dict[str, Any]:
        body = await read_body(request, DecisionBody, strictly=True)
        reason = well_formed(body.reason or "")
        given = well_formed(body.subject or "")
        wanted = DecisionRequest(body.decision, reason, body.arguments, body.call, given)
        records = await approvals.decide(run_id, call_id, wanted)
        found = next(a for a in approvals_of(records) if a.call_id == call_id)
        if found.decided:
            return approval_view(found)
        if found.is_open:
            response.status_code = 202  # decided below, and known here as soon as that comes up
        return approval_view(found) | {"decision": body.decision}

    return router
