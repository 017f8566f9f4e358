"""Messages to a run that exists: they steer it, follow up, and are cleared while they wait."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request

from diptych.core.errors import InvalidRequest
from diptych.core.events import MessageQueued
from diptych.http.bodies import MessageBody, read_body
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import operations
from diptych.http.run_request import read_idempotency_key
from diptych.http.views import queue_view, run_view


def queue_routes(runs: GuardedRuns) -> APIRouter:
    """Give the routes of a run's queues."""
    router = APIRouter()

    @router.post("/v1/runs/{run_id}/steer", status_code=202, **operations.STEER_RUN)
    async def steer(request: Request, run_id: str) -> dict[str, Any]:
        return run_view(await runs.send_message(run_id, await _read_message(request)))

    @router.post("/v1/runs/{run_id}/follow-up", status_code=202, **operations.FOLLOW_UP_RUN)
    async def follow_up(request: Request, run_id: str) -> dict[str, Any]:
        message = replace(await _read_message(request), is_follow_up=True)
        return run_view(await runs.send_message(run_id, message))

    @router.delete("/v1/runs/{run_id}/queue", **operations.CLEAR_QUEUE)
    async def clear(run_id: str) -> dict[str, Any]:
        return queue_view(await runs.clear_messages(run_id))

    return router


async def _read_message(request: Request) -> MessageQueued:
    body = await read_body(request, MessageBody)
    if not body.message.strip():
        raise InvalidRequest("message is empty", param="message")
    key = await read_idempotency_key(request, None)
    return MessageQueued(body.message, key.key if key else f"http:{uuid4().hex}")
