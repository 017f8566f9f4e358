"""Questions of calls: asked in this process, checked, and answered."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

from diptych.core.catalog import Tool
from diptych.core.commands import InputAnswer, MakeCall
from diptych.core.errors import InvalidRequest, ToolError
from diptych.core.events import (
    InputAction,
    InputReceived,
    InputRequest,
    InputRequested,
    WaitKind,
)
from diptych.core.messages import JSON, CallOutput, JSONObject
from diptych.core.output_schema import Misfit, read_output, schema_problem
from diptych.core.reading.strict_json import is_deep
from diptych.core.text import shortened, well_formed
from diptych.net.redaction import SECRETS
from diptych.ports import CallContext
from diptych.runs.inbox import RunTasks

INPUT_SECONDS = 600.0  # until a question is cancelled
MESSAGE_CHARS, SCHEMA_CHARS, CONTENT_CHARS, URL_CHARS = 4_096, 32_768, 65_536, 4_096
WITHDRAWN_ID = "withdrawn"
_ANY_SEQ = 2**53 - 1  # JavaScript reads no larger number exactly


class Questions:
    """The questions of the calls that one run makes in this process."""

    def __init__(self, tasks: RunTasks, now: Callable[[], float]) -> None:
        self._tasks = tasks
        self._now = now
        self._turns: dict[str, asyncio.Lock] = {}  # of the calls made in this process
        self._answers: dict[str, asyncio.Future[InputAnswer]] = {}

    def begin(self, call_id: str) -> None:
        """Let a call ask, one question at a time."""
        self._turns[call_id] = asyncio.Lock()

    async def ask(self, call_id: str, request: InputRequest, state: JSON = None) -> InputAnswer:
        """Ask a question and wait for the answer. Raises `ToolError` if it is too large."""
        request = checked_question(request)
        async with self._turns[call_id]:
            expires_at = self._now() + INPUT_SECONDS
            self._tasks.inbox.put_nowait(InputRequested(call_id, request, expires_at, state))
            answer: asyncio.Future[InputAnswer] = asyncio.get_running_loop().create_future()
            self._answers[call_id] = answer
            try:
                return await answer
            except asyncio.CancelledError:
                if not self._tasks.is_cancelled:  # the tool wants no answer any more
                    withdrawn = InputReceived(call_id, "cancel", WITHDRAWN_ID, _ANY_SEQ)
                    self._tasks.inbox.put_nowait(withdrawn)
                raise
            finally:
                del self._answers[call_id]

    def answer(self, command: MakeCall) -> bool:
        """Continue a call with its answer; False if it was not made in this process."""
        call_id = command.call.id
        if command.resumed is None or call_id not in self._turns:
            return False
        answer = self._answers.get(call_id)
        if answer and not answer.done():
            answer.set_result(command.resumed.answer)
        return True


def checked_question(request: InputRequest) -> InputRequest:
    """Return a question that may be logged: bounded, and without secrets. Raises `ToolError`."""
    schema = request.schema
    if schema is not None and (why := _schema_problem(schema)):
        raise ToolError("failed", f"the tool asks for input, but its schema {why}")
    if len(request.url) > URL_CHARS:
        raise ToolError("failed", "the tool asks to visit a page, but its URL is too long")
    message = well_formed(SECRETS.redact(request.message))
    return InputRequest(
        request.kind,
        shortened(message, MESSAGE_CHARS),
        cast("JSONObject | None", SECRETS.redact_value(schema)),
        SECRETS.redact(request.url),
    )


def _schema_problem(schema: JSONObject) -> str:
    if problem := schema_problem(schema):
        return f"{problem.text} {problem.place}".strip()
    is_long = len(json.dumps(schema)) > SCHEMA_CHARS
    return f"is longer than {SCHEMA_CHARS // 1024} KiB" if is_long else ""


CALLER_OUTPUT = "output"
"""The field of an answer's content with the result of a caller's tool."""


async def result_from_caller(tool: Tool, context: CallContext) -> CallOutput:
    """Wait until the run's caller brings the result of its own tool. Raises `ToolError`."""
    if context.resumed:
        answer = context.resumed.answer
    else:
        answer = await context.ask(InputRequest("caller_tool", tool.name), state={})
    if answer.action != "accept" or answer.content is None:
        raise ToolError("unavailable", "unavailable: the caller did not answer")
    return CallOutput(str(answer.content[CALLER_OUTPUT]))


@dataclass(frozen=True, slots=True)
class InputReply:
    """A request to answer a call's question. `subject` and `caller` are as in `InputReceived`.

    Repeats of an `input_id` are the same answer.
    """

    kind: ClassVar[WaitKind] = "input"
    action: InputAction
    content: JSONObject | None = None
    subject: str = ""
    caller: str = ""
    input_id: str = ""


def received_event(
    asked: InputRequested, seq: int, reply: InputReply, answer_id: str
) -> InputReceived:
    """Make the event of an answer to the question logged at `seq`.

    Raises `InvalidRequest` with the invalid path.
    """
    kind, content = asked.request.kind, reply.content
    needs_content = reply.action == "accept" and kind in {"form", "caller_tool"}
    if (content is not None) != needs_content:
        text = "content is required to accept a form, and allowed only there"
        raise InvalidRequest(text, param="content")
    if content is not None and kind == "form":  # a request's size bounds a result
        _check_content(content, asked.request.schema)
    who = reply.subject, reply.caller
    answer_id = reply.input_id or answer_id
    return InputReceived(asked.call_id, reply.action, answer_id, seq, content, *who)


def _check_content(content: JSONObject, schema: JSONObject | None) -> None:
    if is_deep(content) or len(text := json.dumps(content)) > CONTENT_CHARS:
        problem = f"is nested too deeply, or longer than {CONTENT_CHARS // 1024} KiB"
        raise InvalidRequest(f"content {problem}", param="content", code="invalid_arguments")
    for name, value in content.items():  # of which a schema may say nothing
        is_list_of_texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if not (is_list_of_texts or isinstance(value, str | int | float | None)):
            place = f"content.{name}"
            problem = "a form takes texts, numbers, booleans and lists of texts"
            raise InvalidRequest(f"{place}: {problem}", param=place, code="invalid_arguments")
    found = read_output(schema or {}, text)
    if isinstance(found, Misfit):
        place, _, problem = found.problem.replace("answer", "content", 1).partition(": ")
        raise InvalidRequest(f"{place}: {problem}", param=place, code="invalid_arguments")
