"""`POST /v1/chat/completions` and `GET /v1/models`: OpenAI's API in front of runs.

A chat starts a run like any other request, and then reads it.

Not here: reading the run (`http.chat.reader`), OpenAI's JSON (`http.chat.completion`).
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

from diptych.errors import InvalidRequest
from diptych.http.bodies import ChatBody, read_body, read_conversation
from diptych.http.chat.reader import ChatReader
from diptych.http.disconnect import (
    cancel_if_abandoned,
    hangs_up_before,
    result_unless_disconnected,
)
from diptych.http.errors import RunFailed, run_error_body
from diptych.http.openapi import operations
from diptych.http.run_request import read_run_request
from diptych.http.sse_response import SseResponse
from diptych.net.sse import frame
from diptych.runtime.service import RunService

FIRST_FRAME_SECONDS = 10.0  # for which the headers of a stream wait for its first frame


def chat_routes(name: str, runs: RunService) -> APIRouter:
    """Give the routes of the agent called `name`."""
    router = APIRouter()
    started = int(time.time())

    @router.post("/v1/chat/completions", **operations.COMPLETE_CHAT)
    async def complete(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        _check_model(body.model, name)
        run_request = await read_run_request(
            request,
            read_conversation(body.messages),
            session_id=body.session_id,
            on_disconnect=body.on_disconnect,
        )
        entry = await runs.start(run_request)
        reader = ChatReader(runs, entry, name)
        on_disconnect = None
        if body.on_disconnect == "cancel":
            on_disconnect = partial(cancel_if_abandoned, runs, entry.run_id)
        if body.stream:
            return await _stream(request, body, reader, on_disconnect)
        return await _whole(request, reader, on_disconnect)

    @router.get("/v1/models", **operations.LIST_MODELS)
    async def models() -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": started, "owned_by": "diptych"}
        return {"object": "list", "data": [model]}

    return router


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


async def _stream(
    request: Request,
    body: ChatBody,
    reader: ChatReader,
    on_disconnect: Callable[[], Awaitable[None]] | None,
) -> Response:
    options = body.stream_options
    frames = reader.frames(include_usage=options is not None and options.include_usage)
    first = await _first_frame(request, frames)
    return SseResponse(_all_frames(first, frames), reader.headers, on_disconnect)


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


def _check_model(model: str | None, name: str) -> None:
    if model is not None and model != name:
        raise InvalidRequest(
            f"this agent is called {name!r}; use that as the model, or leave it out",
            param="model",
            code="model_not_found",
        )
