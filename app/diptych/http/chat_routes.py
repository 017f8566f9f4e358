"""`/v1/chat/completions`: starts a run, subscribes to it, and writes what comes as a completion.

A chat cannot take text back. So a stream that has sent text which became void ends with an error,
and the run goes on (decision 32).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import orjson
from starlette.requests import Request
from starlette.responses import Response

from diptych.core.codec import Record, is_terminal
from diptych.http.chat.chat_request import read_chat
from diptych.http.chat_terms import ChatTerms
from diptych.http.completion_format import APPROVAL_REQUESTED, CompletionFormat
from diptych.http.direct_route import DirectRoute
from diptych.http.disconnect import cancel_if_abandoned, result_for_caller
from diptych.http.errors import RunFailed, run_error_body
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.openapi import operations
from diptych.http.run_reader import RunReader, failure
from diptych.http.sse_response import SseResponse
from diptych.net.sse import frame
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry
from diptych.runs.answers import TURN, whole_answer
from diptych.runs.model_caller import MODEL_WAIT

PATH = "/v1/chat/completions"
FIRST_FRAME_SECONDS = 10.0  # for which the headers of a stream wait for its first frame


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
        completion = await result_for_caller(request.receive, reader.completion(), on_disconnect)
        return Response(orjson.dumps(completion), 200, reader.headers, "application/json")

    return DirectRoute(PATH, complete, methods=["POST"], **operations.COMPLETE_CHAT)


def _failure_frame(error: RunFailed) -> bytes:
    return frame(run_error_body(error.code, error.message))


class ChatReader(RunReader):
    """Reads one run, once, into a form; see `RunReader`."""

    def __init__(
        self,
        runs: GuardedRuns,
        entry: RunEntry,
        form: CompletionFormat,
        warnings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(runs, entry, warnings)
        self._format = form
        self._sent_seq = 0  # of the newest text that was sent
        self._caller_tool_frame = form.call_frame()  # before the first text; mostly none
        self._separator = ""  # to send before the next text
        self._waits = b""  # frames that say what the model is waited for, not sent yet

    async def completion(self) -> dict[str, Any]:
        """Wait for the run's end and give the whole completion. Raises `RunFailed`."""
        records, reasoning = await self.ended()
        return self._format.completion(whole_answer(records) or "", records[-1], reasoning)

    async def frames(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Give the frames of a stream; what arrived together comes together.

        Raises `RunFailed` if the run fails before the first frame, or if the stream cannot go on.
        A retry does not open the stream: until its head is out, a failure has a status of its own.
        """
        opening = self._format.first_frame()
        loop = asyncio.get_running_loop()
        opens_at = loop.time() + FIRST_FRAME_SECONDS
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                content = self._content_frames(batch)
                end = _terminal_record(batch)
                if end:
                    if opening:
                        self.raise_if_failed(end)
                    content = self._waits + content
                    yield opening + content + self._last_frames(end, include_usage=include_usage)
                    return
                if content or (self._waits and not (opening and loop.time() < opens_at)):
                    yield opening + self._waits + content
                    opening = self._waits = b""
        raise self.handed_over()

    def _content_frames(self, batch: Sequence[Item]) -> bytes:
        """Frame a batch up to the run's end. Raises `RunFailed` if text that was sent is void."""
        frames: list[tuple[int, bytes]] = []  # with the seq of a text, which may become void
        for item in batch:
            self.note_call(item)
            if isinstance(item, Notice):
                if item.type == "reset":
                    frames = self._without(frames, cast("int", item.fields["last_seq"]) + 1)
                if item.type == MODEL_WAIT:
                    self._waits += self._format.notice_frame(item)
                else:
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
            raise self.unreadable("answer_reset", f"the answer started over: {self.advice}")
        return [(seq, content) for seq, content in frames if seq < from_seq]

    def _last_frames(self, end: Record, *, include_usage: bool) -> bytes:
        if failed := failure(end):
            return frame(run_error_body(*failed), seq=end.seq)
        frames = b""
        if end.event_type == "max_steps":
            text = f"{self._separator}{end.content}"
            frames = self._format.content_frame({"content": text}, seq=end.seq)
        return frames + self._format.last_frames(end, include_usage=include_usage)


def _terminal_record(batch: Sequence[Item]) -> Record | None:
    return next((item for item in batch if isinstance(item, Record) and is_terminal(item)), None)
