"""`/v1/chat/completions` and `/v1/models`: OpenAI's API in front of runs.

A chat starts a run like any other request, and then reads it.

Not here: reading the chat (`http.chat.chat_request`) and the run (`http.chat.reader`), OpenAI's
JSON (`http.chat.completion`).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from diptych.http.chat.chat_request import ChatTerms, check_model, read_chat
from diptych.http.chat.completion import CompletionFormat
from diptych.http.chat.reader import ChatReader
from diptych.http.disconnect import (
    cancel_if_abandoned,
    hangs_up_before,
    result_unless_disconnected,
)
from diptych.http.errors import RunFailed, run_error_body
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import operations
from diptych.http.sse_response import SseResponse
from diptych.net.sse import frame

FIRST_FRAME_SECONDS = 10.0  # for which the headers of a stream wait for its first frame


def chat_routes(policy: ChatTerms, runs: GuardedRuns) -> APIRouter:
    """Give the routes of an agent whose chats may bring what `policy` says."""
    router = APIRouter()
    name, started = policy.name, int(time.time())

    @router.post("/v1/chat/completions", **operations.COMPLETE_CHAT)
    async def complete(request: Request) -> Response:
        chat = await read_chat(request, policy)
        entry = await runs.start(chat.run)
        reader = ChatReader(runs, entry, CompletionFormat(entry, name, chat.tools), chat.headers)
        on_disconnect = None
        if chat.run.origin.cancels_on_disconnect:
            on_disconnect = partial(cancel_if_abandoned, runs, entry.run_id)
        if chat.streams:
            frames = reader.frames(include_usage=chat.includes_usage)
            first = await _first_frame(request, frames)
            return SseResponse(_all_frames(first, frames), reader.headers, on_disconnect)
        return await _whole(request, reader, on_disconnect)

    @router.get("/v1/models", **operations.LIST_MODELS)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name, started)]}

    @router.get("/v1/models/{model}", **operations.READ_MODEL)
    async def model(model: str) -> dict[str, Any]:
        check_model(model, name)
        return _model(name, started)

    return router


def _model(name: str, started: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": started, "owned_by": "diptych"}


async def _whole(
    request: Request, reader: ChatReader, on_disconnect: Callable[[], Awaitable[None]] | None
) -> Response:
    if on_disconnect is None:
        completion = await reader.completion()
    else:
        try:
            completion = await result_unless_disconnected(request.receive, reader.completion())
        except ClientDisconnect:
            await on_disconnect()
            raise
    return Response(orjson.dumps(completion), 200, reader.headers, "application/json")


async def _first_frame(request: Request, frames: AsyncGenerator[bytes]) -> "asyncio.Future[bytes]":
    """Wait for the first frame, so that a failure before it can be an HTTP error.

    After 10 s the stream opens without it, because proxies and people want to see headers. It also
    opens when the caller hangs up: an open stream notices that and ends.
    """
    first = asyncio.ensure_future(anext(frames, b""))
    await hangs_up_before(request.receive, first, seconds=FIRST_FRAME_SECONDS)
    if first.done():
        first.result()
    return first


async def _all_frames(
    first: "asyncio.Future[bytes]", frames: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    """Give all frames; a failure becomes the last one, because the headers are sent already."""
    async with aclosing(frames):
        try:
            yield await first
            async for content in frames:
                yield content
        except RunFailed as error:
            yield frame(run_error_body(error.code, error.message))
