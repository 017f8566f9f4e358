"""`POST /v1/chat/completions` and `GET /v1/models`: the OpenAI-compatible face.

A chat completion is a run like any other; this module follows it and puts what it hears into
OpenAI's form. Notices travel as chunks that are valid and empty, because clients break on
anything else (loop.md §5).
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from diptych.errors import InvalidRequest, RequestError, StoreError
from diptych.http.bodies import ChatBody, read_body, read_messages, read_session_id
from diptych.http.chat import run_end
from diptych.http.disconnect import hung_up, leave, unless_hung_up
from diptych.http.errors import RunFailed, run_error, store_problem
from diptych.http.idempotency import read_once
from diptych.http.sse_response import DONE, SseResponse
from diptych.loop.codec import Record
from diptych.loop.events import Origin
from diptych.net.sse import frame
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry
from diptych.runtime.answers import TURN, collect, whole_answer
from diptych.runtime.request import RunRequest
from diptych.runtime.service import RunService

HOLD_SECONDS = 10.0  # for how long the headers of a stream wait for something to tell
TOLD_NOTICES = frozenset({"progress", "tool_progress", "delegation_progress", "format_warning"})
_CALLS = frozenset({"tool_call", "delegation_request"})
_log = logging.getLogger(__name__)


def chat_routes(name: str, runs: RunService) -> APIRouter:
    """Give the routes of the agent called `name`."""
    router = APIRouter()
    started = int(time.time())

    @router.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        _check_model(body.model, name)
        entry = await runs.start(await _read_ask(request, body))
        chat = _Chat(runs, entry, name)
        cancels = body.on_disconnect == "cancel"
        if not body.stream:
            work = chat.whole()
            if cancels:
                work = unless_hung_up(request, runs, entry.run_id, work)
            return Response(orjson.dumps(await work), 200, chat.headers, "application/json")
        options = body.stream_options
        frames = chat.frames(include_usage=options is not None and options.include_usage)
        told = _release(await _hold(request, frames), frames)
        on_gone = partial(leave, runs, entry.run_id) if cancels else None
        return SseResponse(told, chat.headers, on_gone)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": started, "owned_by": "diptych"}
        return {"object": "list", "data": [model]}

    return router


class _Chat:
    """One run, told as a chat completion."""

    def __init__(self, runs: RunService, entry: RunEntry, model: str) -> None:
        self.headers = {"X-Session-ID": entry.session_id, "X-Run-ID": entry.run_id}
        self._runs = runs
        self._entry = entry
        self._model = model
        self._created = int(entry.created)
        self._has_called = False
        self._last_told = 0  # seq of the newest text that was told
        self._between = ""  # what stands before the next text
        self._text_frame = self._chunk_parts()

    async def whole(self) -> dict[str, Any]:
        """Wait for the end and give the whole completion. Raises `RunFailed`."""
        records: list[Record] = []
        async for batch in self._followed():
            for item in batch:
                collect(records, item)
                if isinstance(item, Record):
                    self._note(item)
        end = run_end.end_of(records)
        if end is None:
            raise self._handed_over()
        self._raise_if_failed(end)
        return {
            **self._envelope("chat.completion"),
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": whole_answer(records) or "",
                        "refusal": None,
                    },
                    "logprobs": None,
                    "finish_reason": run_end.finish_reason(end),
                }
            ],
            "usage": run_end.usage(end),
        }

    async def frames(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Give the frames of a stream.

        Raises `RunFailed` if the run fails before the first, or if the stream cannot go on.
        """
        opening = self._chunk({"role": "assistant", "content": ""})
        async with aclosing(self._followed()) as batches:
            async for batch in batches:
                told = self._told(batch)
                if end := run_end.end_of(batch):
                    if opening and not told:
                        self._raise_if_failed(end)
                    yield opening + told + self._end(end, include_usage=include_usage)
                    return
                if told:
                    yield opening + told
                    opening = b""
        raise self._handed_over()

    async def _followed(self) -> AsyncGenerator[Sequence[Item]]:
        """Follow the run. Raises `RunFailed` if that cannot go on."""
        try:
            async with aclosing(self._runs.subscribe(self._entry.run_id)) as batches:
                async for batch in batches:
                    yield batch
        except StoreError as error:
            _log.error("the store failed under a chat: %s", error)
            code, problem = store_problem(error)
            raise self._broken(code, f"{problem}: {self._where}") from error
        except RequestError as error:
            raise self._broken(error.code, error.message) from error

    def _told(self, batch: Sequence[Item]) -> bytes:
        """Frame what a batch tells before the run's end."""
        pieces: list[tuple[int, bytes]] = []  # with the seq of what may become void
        for item in batch:
            if isinstance(item, Notice):
                if item.type == "reset":
                    pieces = self._without(pieces, cast("int", item.fields["last_seq"]) + 1)
                pieces.append((0, self._notice(item)))
            elif item.event_type == "text":
                head, tail = self._text_frame
                if self._between:
                    pieces.append((0, self._chunk({"content": self._between})))
                    self._between = ""
                text = orjson.dumps(str(item.content))
                pieces.append((item.seq, b"id: %d\ndata: %b%b%b" % (item.seq, head, text, tail)))
            elif item.event_type == "answer_reset":
                pieces = self._without(pieces, cast("int", item.metadata["from_seq"]))
            else:
                self._note(item)
                if item.event_type == "agent_response":  # the run may have been sent a message
                    self._between = TURN
        self._last_told = max((seq for seq, _ in pieces if seq), default=self._last_told)
        return b"".join(piece for _, piece in pieces)

    def _without(
        self, pieces: Sequence[tuple[int, bytes]], from_seq: int
    ) -> list[tuple[int, bytes]]:
        """Leave out text that has become void; raises `RunFailed` if some of it is told already."""
        if self._last_told >= from_seq:
            raise self._broken("answer_reset", f"the answer started over: {self._where}")
        return [piece for piece in pieces if piece[0] < from_seq]

    def _handed_over(self) -> RunFailed:
        message = f"this process is leaving, and the run goes on: {self._where}"
        return self._broken("handed_over", message)

    def _broken(self, code: str, message: str) -> RunFailed:
        return RunFailed(code, message, has_called=True, run=self.headers)

    @property
    def _where(self) -> str:
        path = f"/v1/runs/{self._entry.run_id}"
        return f"read the answer at {path}, or follow {path}/events after the last id"

    def _note(self, record: Record) -> None:
        self._has_called = self._has_called or record.event_type in _CALLS

    def _raise_if_failed(self, end: Record) -> None:
        if end.event_type in ("failed", "aborted"):
            raise RunFailed(*run_end.failure(end), has_called=self._has_called, run=self.headers)

    def _notice(self, notice: Notice) -> bytes:
        if notice.type not in TOLD_NOTICES:
            return b""
        return frame(
            {**self._body({}, None), "type": notice.type, **notice.fields}, event="progress"
        )

    def _end(self, end: Record, *, include_usage: bool) -> bytes:
        if end.event_type in ("failed", "aborted"):
            return frame(run_error(*run_end.failure(end)), seq=end.seq)
        told = bytearray()
        if end.event_type == "max_steps":
            told += self._chunk({"content": f"{self._between}{end.content}"}, seq=end.seq)
        told += frame(self._body({}, run_end.finish_reason(end)))
        if include_usage:
            usage = {
                **self._envelope("chat.completion.chunk"),
                "choices": [],
                "usage": run_end.usage(end),
            }
            told += frame(usage)
        return bytes(told) + DONE

    def _chunk(self, delta: Mapping[str, Any], seq: int | None = None) -> bytes:
        return frame(self._body(delta, None), seq=seq)

    def _chunk_parts(self) -> tuple[bytes, bytes]:
        """Give what stands before and after the text of each chunk, which is all that differs."""
        mark = "\x00"
        whole = orjson.dumps(self._body({"content": mark}, None))
        head, _, tail = whole.partition(orjson.dumps(mark))
        return head, tail + b"\n\n"

    def _body(self, delta: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._envelope("chat.completion.chunk"), "choices": [choice]}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._entry.run_id,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }


async def _hold(request: Request, frames: AsyncGenerator[bytes]) -> "asyncio.Future[bytes]":
    """Wait for the first frame, so that a failure before it can still be an HTTP error.

    After 10 s the stream opens all the same: proxies and people want to see headers. So it does
    when the caller hangs up, because an open stream is what ends then.
    """
    first = asyncio.ensure_future(anext(frames, b""))
    gone = asyncio.ensure_future(hung_up(request))
    await asyncio.wait([first, gone], timeout=HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if first.done():
        first.result()
    return first


async def _release(
    first: "asyncio.Future[bytes]", frames: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    async with aclosing(frames):
        try:
            yield await first
            async for told in frames:
                yield told
        except RunFailed as error:  # the headers are out already
            yield frame(run_error(error.code, error.message))


async def _read_ask(request: Request, body: ChatBody) -> RunRequest:
    messages, system = read_messages(body.messages)
    session_id = read_session_id(request, body.session_id)
    origin = Origin(
        traceparent=request.headers.get("traceparent"),
        cancels_on_disconnect=body.on_disconnect == "cancel",
    )
    return RunRequest(messages, system, session_id, origin, await read_once(request, session_id))


def _check_model(model: str | None, name: str) -> None:
    if model is not None and model != name:
        raise InvalidRequest(
            f"this agent is called {name!r}; use that as the model, or leave it out",
            param="model",
            code="model_not_found",
        )
