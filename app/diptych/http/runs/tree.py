"""`/v1/runs/{id}/tree`: a run and the runs below it, at this agent and at others.

This agent asks the others itself, with its own proof: the runs there are its own, and who may see
a run here is told what happens below it anyway (decision 152).

Not here: what stands on this agent's record (`runtime.run_tree`).
"""

import asyncio
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from starlette.responses import Response

from diptych.errors import DelegationError
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import operations
from diptych.http.views import run_status
from diptych.ports import ChildRef
from diptych.runtime.run_tree import run_node

MAX_DEPTH = 5  # of delegations below the run
MAX_ASKED = 64  # delegations of one run that are followed, the newest
_AT_ONCE = 8

Depth = Annotated[
    int, Query(ge=0, le=MAX_DEPTH, description="How many levels of delegations to follow.")
]


def tree_routes(runs: GuardedRuns, agent: str) -> APIRouter:
    """Give the route of trees; `agent` is this agent's name."""
    router = APIRouter()

    @router.get("/v1/runs/{run_id}/tree", **operations.READ_RUN_TREE)
    async def read_tree(run_id: str, depth: Depth = MAX_DEPTH) -> Response:
        view = await run_tree(runs, agent, run_id, depth)
        return Response(orjson.dumps(view), media_type="application/json")

    return router


async def run_tree(runs: GuardedRuns, agent: str, run_id: str, depth: int) -> dict[str, Any]:
    """Give the tree of a run that the caller may see. Raises `RunNotFound`."""
    entry = await runs.entry(run_id)
    records = await runs.records(run_id)
    node: dict[str, Any] = {"object": "run.tree", "agent": agent}
    node |= run_node(records, run_status(entry, records))
    if depth > 0:
        limit = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(
            *(_follow(runs, call, depth - 1, limit) for call in node["delegations"][-MAX_ASKED:])
        )
    return node


async def _follow(
    runs: GuardedRuns, call: dict[str, Any], depth: int, limit: asyncio.Semaphore
) -> None:
    """Put the child's run below a delegation, or why it is not there."""
    child = call.get("child", {})
    known = child.get("task_id", ""), child.get("url", "")
    if call["ended_at"] is not None and not known[0]:
        return  # it never became a task
    try:
        async with limit:
            call["run"] = await runs.child_tree(
                call["agent"], ChildRef(*known, call["context_id"], depth)
            )
    except DelegationError as error:
        call["problem"] = error.message
