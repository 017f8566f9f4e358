"""`/v1/chat/completions` and `/v1/models`: runs as OpenAI chats.

A chat stream cannot retract text: if sent text becomes void, the stream ends with an error while
the run goes on (decision 32).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from diptych.access.caller import current_caller
from diptych.access.grants import Right
from diptych.core.codec import Record
from diptych.core.errors import InvalidRequest
from diptych.core.waits import REQUESTS
from diptych.http.agent_profile import TEAM, AgentProfile
from diptych.http.answer_form import AskedForm, TypedOutput, read_answer_form
from diptych.http.bodies import Body, RunOptions, json_response, json_router
from diptych.http.caller_calls import start_or_continue
from diptych.http.completion_format import CompletionFormat
from diptych.http.errors import RunFailed, run_error_body
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.messages import Messages, read_conversation
from diptych.http.openapi import ASKED, Events, reply
from diptych.http.parameters import check_supported, read_parameters, warning
from diptych.http.run_reader import RunReader, cancel_if_abandoned, failure, result_for_caller
from diptych.http.run_request import ChatTerms, read_run_request
from diptych.http.sse_response import SseResponse
from diptych.net.sse import frame
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry
from diptych.runs.answers import TURN, whole_answer
from diptych.runs.model_caller import MODEL_WAIT
from diptych.runs.request import RunRequest

_STARTED = int(time.time())
FIRST_FRAME_SECONDS = 10.0  # for which the headers of a stream wait for its first frame
_EVENTS = Events(
    "With `stream`: each `data:` is a ChatCompletionChunk, the last one `[DONE]`. The frame of a "
    "text has the `id` of its event. After a failure the last frame is an Error, without `[DONE]`.",
    'data: {"id":"run-1","object":"chat.completion.chunk","created":1767225600,"model":"helper",'
    '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    "data: [DONE]\n\n",
)


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = Field(None, description="Whether a last chunk has the usage.")


class ChatBody(RunOptions):
    """`POST /v1/chat/completions`. A field that is null counts as absent.

    Parameters of OpenAI's API (`temperature`, `max_tokens`, `stop` …) reach the model if the
    manifest's `chat.allowParameters` names them; `max_completion_tokens` counts as `max_tokens`.
    Others, and fields that are not known here, have no effect: the header `X-Diptych-Warning` of
    the reply names them. Fields that would change what the reply means are refused.
    """

    model_config = ConfigDict(extra="allow")

    messages: Messages
    model: str | None = Field(None, description="The agent's name, if anything.")
    stream: bool | None = Field(None, description="Whether the answer comes as events.")
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = Field(
        None,
        description="The form of the answer: `json_schema` with a schema that it fits, "
        "`json_object`, or `text`.",
    )
    tools: list[Any] | None = Field(
        None,
        description="Functions of the caller. The manifest's `chat.callerTools` says whether they "
        "are refused, ignored, or offered to the model beside the agent's own tools: a call of one "
        "then ends the reply, and the next request brings its result. One that `tool_choice` "
        "forces asks for an answer of its form, as its call.",
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None,
        description="`auto`, `none`, one of all as `required`, or a tool by its name.",
    )
    n: Literal[1] | None = Field(None, description="There is one choice.")


@dataclass(frozen=True, slots=True)
class _Chat:
    """A parsed chat.

    With `tools` the answer is a call of one of these caller's tools. `warnings` are response
    headers that name fields without effect.
    """

    run_request: RunRequest
    tools: tuple[str, ...]
    warnings: Mapping[str, str]


def chat_routes(terms: ChatTerms, runs: GuardedRuns) -> APIRouter:
    """Return an agent's chat routes; `terms` says which input its chats may have."""
    router = json_router()
    described = reply("ChatCompletion", "The answer.", 404, *ASKED, events=_EVENTS)

    @router.post("/v1/chat/completions", **described)
    async def complete_chat(request: Request, body: ChatBody) -> Response:
        """Start a run and reply with its answer, in OpenAI's form."""
        chat = await _read_chat(request, body, terms)
        no_tools = body.tool_choice == "none"
        entry, part, _ = await start_or_continue(runs, chat.run_request, has_no_tools=no_tools)
        form = CompletionFormat(entry, terms.name, part, chat.tools)
        reader = ChatReader(runs, entry, form, chat.warnings)
        on_disconnect = None
        if chat.run_request.origin.cancels_on_disconnect:
            on_disconnect = partial(cancel_if_abandoned, runs, entry.run_id)
        if body.stream:
            options = body.stream_options
            frames = reader.frames(include_usage=bool(options and options.include_usage))
            return SseResponse(
                frames,
                reader.headers,
                on_disconnect,
                open_after=FIRST_FRAME_SECONDS,
                failure_frame=_failure_frame,
            )
        completion = await result_for_caller(request.receive, reader.completion(), on_disconnect)
        return json_response(completion, headers=reader.headers)

    @router.get("/v1/models", **reply("ModelList", "The agent."))
    async def list_models(request: Request) -> dict[str, Any]:
        """List the agent as the only model, if the caller may ask it."""
        team: Sequence[AgentProfile] | None = request.scope.get(TEAM)
        names = [terms.name] if current_caller().may(Right.ASK) else []
        if team is not None:
            names = [profile.name for profile in team]
        return {"object": "list", "data": [_model(name) for name in names]}

    @router.get("/v1/models/{model}", **reply("Model", "The agent."))
    async def read_model(model: str) -> dict[str, Any]:
        """Read the agent as a model, by its name."""
        terms.check_model(model)
        return _model(model)

    return router


def _model(agent: str) -> dict[str, Any]:
    return {"id": agent, "object": "model", "created": _STARTED, "owned_by": "diptych"}


async def _read_chat(request: Request, body: ChatBody, terms: ChatTerms) -> _Chat:
    """Read a chat. Raises `InvalidRequest`."""
    fields = dict(body.model_extra or {})
    check_supported(fields)
    terms.check_model(body.model)
    output, ignored_tools = await _read_form(body, fields, terms)
    parameters = read_parameters(fields, terms.config.allow_parameters)
    conversation = read_conversation(body.messages, terms.inputs)
    run = await read_run_request(request, conversation, body)
    left_out = terms.without_effect(conversation, "system")
    return _Chat(
        replace(
            run,
            output_schema=output.schema,
            parameters=parameters.allowed,
            tools=output.offered,
        ),
        output.tools,
        warning((*left_out, *ignored_tools, *parameters.ignored)),
    )


async def _read_form(
    body: ChatBody, fields: dict[str, object], terms: ChatTerms
) -> tuple[TypedOutput, tuple[str, ...]]:
    """Return the answer's form, and the names of tool fields without effect.

    Removes the fields that it reads from `fields`.
    """
    if fields.pop("output_schema", None) is not None:
        raise InvalidRequest(
            "output_schema: a chat says it by response_format",
            param="output_schema",
            code="unsupported_parameter",
        )
    older = {name: fields.pop(name, None) for name in ("functions", "function_call")}
    asked = AskedForm(body.response_format, body.tools, body.tool_choice, older)
    return await read_answer_form(asked, terms.config.caller_tools)


def _failure_frame(error: RunFailed) -> bytes:
    return frame(run_error_body(error.code, error.message))


class ChatReader(RunReader):
    """Reads one part of a run as a chat; see `RunReader`."""

    def __init__(
        self,
        runs: GuardedRuns,
        entry: RunEntry,
        form: CompletionFormat,
        warnings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(runs, entry, warnings, form.part)
        self._format = form
        self._sent_seq = 0  # of the newest text that was sent
        self._caller_tool_frame = form.call_frame()  # before the first text; mostly none
        self._separator = ""  # to send before the next text
        self._waits = b""  # frames about waiting for the model, not sent yet

    async def completion(self) -> dict[str, Any]:
        """Wait for the part's end and return the completion. Raises `RunFailed`."""
        records, reasoning = await self.ended()
        return self._format.completion(whole_answer(records) or "", records[-1], reasoning)

    async def frames(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Yield the frames of a stream, one chunk per batch.

        Raises `RunFailed` if the run fails before the first frame or the stream cannot go on. Model
        retries do not open the stream, so an early failure still gets its own HTTP status.
        """
        opening = self._format.first_frame()
        loop = asyncio.get_running_loop()
        opens_at = loop.time() + FIRST_FRAME_SECONDS
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                items, end = self.up_to_end(batch)
                content = self._content_frames(items)
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

    def _content_frames(self, items: Sequence[Item]) -> bytes:
        """Frame some items. Raises `RunFailed` if sent text became void."""
        frames: list[tuple[int, bytes]] = []  # with the seq of a text, which may become void
        for item in items:
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
            elif item.event_type in REQUESTS and item.metadata.get("kind") != "caller_tool":
                frames.append((0, self._format.wait_frame(item)))
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
