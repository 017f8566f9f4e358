"""`/v1/chat/completions`: starts a run, subscribes to it, and writes what comes as a completion.

A chat cannot take text back. So a stream that has sent text which became void ends with an error,
and the run goes on (decision 32).

Not here: reading the request (`chat_request`), OpenAI's JSON (`completion_format`), callers that
hang up (`http.disconnect`).
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from diptych.errors import RequestError, StoreError
from diptych.http.chat.chat_request import ChatTerms, read_chat
from diptych.http.chat.completion_format import APPROVAL_REQUESTED, CompletionFormat, failure
from diptych.http.direct_route import DirectRoute
from diptych.http.disconnect import cancel_if_abandoned, result_unless_disconnected
from diptych.http.errors import RunFailed, run_error_body, store_failure
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import operations
from diptych.http.sse_response import SseResponse
from diptych.loop.codec import Record, is_terminal
from diptych.net.sse import frame
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry
from diptych.runtime.answers import TURN, collect, whole_answer

PATH = "/v1/chat/completions"
FIRST_FRAME_SECONDS = 10.0  # for which the headers of a stream wait for its first frame
_CALLS = frozenset({"tool_call", "delegation_request"})
_logger = logging.getLogger(__name__)


def completion_route(terms: ChatTerms, runs: GuardedRuns) -> DirectRoute:
    """Give the route of an agent whose chats may bring what `terms` says.

    `runs` is `runtime.service.RunService`, as far as the caller has rights to it.
    """

    async def complete(request: Request) -> Response:
        chat = await read_chat(request, terms)
        entry = await runs.start(chat.run_request)
        form = CompletionFormat(entry, terms.name, chat.tools)
        reader = ChatReader(runs, entry, form, chat.warnings)
        on_disconnect = None
        if chat.run_request.origin.cancels_on_disconnect:
            on_disconnect = partial(cancel_if_abandoned, runs, entry.run_id)
        if chat.streams:
            frames = reader.frames(include_usage=chat.includes_usage)
            return SseResponse(
                frames,
                reader.headers,
                on_disconnect,
                open_after=FIRST_FRAME_SECONDS,
                failure_frame=_failure_frame,
            )
        return await _whole(request, reader, on_disconnect)

    return DirectRoute(PATH, complete, methods=["POST"], **operations.COMPLETE_CHAT)


async def _whole(
    request: Request, reader: "ChatReader", on_disconnect: Callable[[], Awaitable[None]] | None
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


def _failure_frame(error: RunFailed) -> bytes:
    return frame(run_error_body(error.code, error.message))


class ChatReader:
    """Reads one run, once, into a form. `headers` name the run in the response, beside `warnings`.

    A model's reasoning is never on record: it is told as far as it was heard live.
    """

    def __init__(
        self,
        runs: GuardedRuns,
        entry: RunEntry,
        form: CompletionFormat,
        warnings: Mapping[str, str] | None = None,
    ) -> None:
        self.headers = {
            "X-Session-ID": entry.session_id,
            "X-Run-ID": entry.run_id,
            **(warnings or {}),
        }
        self._runs = runs
        self._run_id = entry.run_id
        self._format = form
        self._has_made_calls = False
        self._sent_seq = 0  # of the newest text that was sent
        self._caller_tool_frame = form.call_frame()  # before the first text; mostly none
        self._separator = ""  # to send before the next text

    async def completion(self) -> dict[str, Any]:
        """Wait for the run's end and give the whole completion. Raises `RunFailed`."""
        records: list[Record] = []
        reasoning: list[str] = []
        async for batch in self._batches():
            for item in batch:
                collect(records, item)
                self._note_call(item)
                if isinstance(item, Notice) and item.type == "reasoning":
                    reasoning.append(str(item.fields["content"]))
        if not (records and is_terminal(records[-1])):
            raise self._handed_over()
        self._raise_if_failed(records[-1])
        answer = whole_answer(records) or ""
        return self._format.completion(answer, records[-1], "".join(reasoning))

    async def frames(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Give the frames of a stream; what arrived together comes together.

        Raises `RunFailed` if the run fails before the first frame, or if the stream cannot go on.
        """
        opening = self._format.first_frame()
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                content = self._content_frames(batch)
                end = _terminal_record(batch)
                if end:
                    if opening:
                        self._raise_if_failed(end)
                    yield opening + content + self._last_frames(end, include_usage=include_usage)
                    return
                if content:
                    yield opening + content
                    opening = b""
        raise self._handed_over()

    async def _batches(self) -> AsyncGenerator[Sequence[Item]]:
        """Subscribe to the run. Raises `RunFailed` if it cannot be read further."""
        try:
            async with aclosing(await self._runs.subscribe(self._run_id)) as batches:
                async for batch in batches:
                    yield batch
        except StoreError as error:
            _logger.error("the store failed under a chat: %s", error)
            code, message = store_failure(error)
            raise self._unreadable(code, f"{message}: {self._advice}") from error
        except RequestError as error:
            raise self._unreadable(error.code, error.message) from error

    def _content_frames(self, batch: Sequence[Item]) -> bytes:
        """Frame a batch up to the run's end. Raises `RunFailed` if text that was sent is void."""
        frames: list[tuple[int, bytes]] = []  # with the seq of a text, which may become void
        for item in batch:
            self._note_call(item)
            if isinstance(item, Notice):
                if item.type == "reset":
                    frames = self._without(frames, cast("int", item.fields["last_seq"]) + 1)
                frames.append((0, self._format.notice_frame(item)))
            elif item.event_type == "text":
                if self._separator:
                    frames.append((0, self._format.content_frame({"content": self._separator})))
                    self._separator = ""
                frames.append((0, self._caller_tool_frame))
                self._caller_tool_frame = b""
                frames.append((item.seq, self._format.text_frame(item)))
            elif item.event_type == APPROVAL_REQUESTED:
                frames.append((0, self._format.approval_frame(item)))
            elif item.event_type == "answer_reset":
                frames = self._without(frames, cast("int", item.metadata["from_seq"]))
            elif item.event_type == "agent_response":
                self._separator = TURN  # a message that the run was sent may begin another turn
        self._sent_seq = max((seq for seq, _ in frames if seq), default=self._sent_seq)
        return b"".join(content for _, content in frames)

    def _without(
        self, frames: Sequence[tuple[int, bytes]], from_seq: int
    ) -> list[tuple[int, bytes]]:
        """Remove void text. Raises `RunFailed` if some of it was sent in an earlier batch."""
        if self._sent_seq >= from_seq:
            raise self._unreadable("answer_reset", f"the answer started over: {self._advice}")
        return [(seq, content) for seq, content in frames if seq < from_seq]

    def _last_frames(self, end: Record, *, include_usage: bool) -> bytes:
        if failed := failure(end):
            return frame(run_error_body(*failed), seq=end.seq)
        frames = b""
        if end.event_type == "max_steps":
            text = f"{self._separator}{end.content}"
            frames = self._format.content_frame({"content": text}, seq=end.seq)
        return frames + self._format.last_frames(end, include_usage=include_usage)

    def _note_call(self, item: Item) -> None:
        if isinstance(item, Record) and item.event_type in _CALLS:
            self._has_made_calls = True

    def _raise_if_failed(self, end: Record) -> None:
        if failed := failure(end):
            raise RunFailed(*failed, has_made_calls=self._has_made_calls, headers=self.headers)

    def _handed_over(self) -> RunFailed:
        message = f"this process is leaving, and the run goes on: {self._advice}"
        return self._unreadable("handed_over", message)

    def _unreadable(self, code: str, message: str) -> RunFailed:
        return RunFailed(code, message, has_made_calls=True, headers=self.headers)

    @property
    def _advice(self) -> str:
        path = f"/v1/runs/{self._run_id}"
        return f"read the answer at {path}, or follow {path}/events after the last id"


def _terminal_record(batch: Sequence[Item]) -> Record | None:
    return next((item for item in batch if isinstance(item, Record) and is_terminal(item)), None)
