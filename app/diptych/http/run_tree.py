"""`/v1/runs/{id}/tree`: a run and the runs below it, at this agent and at others.

This agent asks the others with its own credentials: the runs there are its own, and callers who may
see a run here see its delegations anyway.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Query
from starlette.responses import Response

from diptych.core.errors import DelegationError
from diptych.core.messages import JSON
from diptych.http.bodies import json_response, json_router
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import reply
from diptych.http.views import run_status
from diptych.ports import ChildRef
from diptych.runs.run_node import run_node
from diptych.runs.service import RunService

Ask: TypeAlias = Callable[[str, ChildRef], Awaitable[JSON]]
"""Asks an agent, by its name, for the run of a delegation; see `Agents.run_tree`."""
MAX_DEPTH = 5  # of delegations below the run
MAX_ASKED = 64  # delegations of one run that are followed, the newest
MAX_BYTES = 3 * 2**19
"""Of all children of one run, as JSON: callers read at most 2 MiB."""
_AT_ONCE = 8

Depth = Annotated[
    int, Query(ge=0, le=MAX_DEPTH, description="How many levels of delegations to follow.")
]


def tree_routes(runs: GuardedRuns, agent: str, service: RunService) -> APIRouter:
    """Return the tree route; `agent` is this agent's name, `service` asks other agents."""
    router = json_router()

    @router.get("/v1/runs/{run_id}/tree", **reply("RunTree", "The tree."))
    async def read_run_tree(run_id: str, depth: Depth = MAX_DEPTH) -> Response:
        """Read a run, its delegations, and their runs at other agents.

        A run that cannot be read is replaced by a `problem`.
        """
        entry, records = await runs.entry(run_id), await runs.records(run_id)
        own = run_node(records, run_status(entry, records))
        node: dict[str, Any] = {"object": "run.tree", "agent": agent, **own}
        if depth > 0:
            await _follow_all(node["delegations"][-MAX_ASKED:], depth - 1, service.child_tree)
        return json_response(node)

    return router


async def _follow_all(calls: Sequence[dict[str, Any]], depth: int, ask: Ask) -> None:
    limit, room = asyncio.Semaphore(_AT_ONCE), MAX_BYTES

    async def follow(call: dict[str, Any]) -> None:
        nonlocal room
        async with limit:
            if room > 0:
                await _follow(call, depth, ask)
        room -= (size := len(orjson.dumps(call.get("run"))))
        if room < 0:
            call.pop("run", None)
            call["problem"] = "the tree is too large to be shown whole"
            room += size  # others may be smaller

    await asyncio.gather(*map(follow, calls))


async def _follow(call: dict[str, Any], depth: int, ask: Ask) -> None:
    """Add the child's run to a delegation, or the reason why it is missing."""
    child = call.get("child", {})
    known = child.get("task_id", ""), child.get("url", "")
    if call["ended_at"] is not None and not known[0]:
        return  # it never became a task
    try:
        call["run"] = await ask(call["agent"], ChildRef(*known, call["context_id"], depth))
    except DelegationError as error:
        call["problem"] = error.message
