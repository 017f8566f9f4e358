"""Questions of calls: asked in this process, read from records, and answered.

Questions of children are validated, because people answer them.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from diptych.core.catalog import Tool
from diptych.core.codec import Record, event_of
from diptych.core.commands import InputAnswer, MakeCall
from diptych.core.errors import AlreadyAnswered, InputNotFound, InvalidRequest, ToolError
from diptych.core.events import (
    AskedBelow,
    InputAction,
    InputKind,
    InputReceived,
    InputRequest,
    InputRequested,
)
from diptych.core.messages import JSON, CallOutput, ChildRun, Delegation, JSONObject
from diptych.core.output_schema import Misfit, read_output, schema_problem
from diptych.core.reading.strict_json import is_deep
from diptych.core.text import shortened, well_formed
from diptych.core.waits import CLOSING, Wait, inputs_of
from diptych.net.redaction import SECRETS
from diptych.ports import CallContext, ChildEvent
from diptych.runs.inbox import RunTasks
from diptych.runs.waits import CALL_PATH, MAX_EXPIRY, find_open

INPUT_SECONDS = 600.0  # until a question is cancelled
MESSAGE_CHARS, SCHEMA_CHARS, CONTENT_CHARS, URL_CHARS = 4_096, 32_768, 65_536, 4_096
WITHDRAWN_ID = "withdrawn"
_KINDS_BELOW = ("form", "url", "sign_in")  # callers' tools are not passed on to children
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
        request = _checked(request)
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


def _checked(request: InputRequest) -> InputRequest:
    """Return a question that may be logged: bounded, and without secrets."""
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


def child_input(
    call: Delegation, child: ChildRun, event: ChildEvent
) -> InputRequested | InputReceived | None:
    """Return the question, or the end of one, in an event of a delegation's task, if any."""
    given = event.metadata.get("call_id")
    if event.path or not event.seq or not (isinstance(given, str) and CALL_PATH.fullmatch(given)):
        return None
    about: Mapping[str, Any] = event.metadata
    call_id = f"{call.id}.{given}"
    match event.type, event.content:
        case "input_requested", str(message):
            at, request = about.get("expires_at"), _request_of(message, about)
            if request is None or not (isinstance(at, int | float) and 0 < at < MAX_EXPIRY):
                return None
            below = AskedBelow(call.agent, child.url, child.task_id, event.seq)
            return InputRequested(call_id, request, float(at), below=below)
        case "input_received", "accept" | "decline" | "cancel" as action:
            return InputReceived(
                call_id,
                action,
                _text(about.get("input_id")),
                event.seq,
                subject=_text(about.get("subject")),
                is_expired=about.get("is_expired") is True,
            )
        case "input_received", "closed":
            return InputReceived(call_id, "closed", "", event.seq)
        case kind, _ if kind in CLOSING:
            return InputReceived(call_id, "closed", "", event.seq)
        case _:
            return None


def _request_of(message: str, about: Mapping[str, Any]) -> InputRequest | None:
    kind, schema, url = about.get("kind"), about.get("schema"), about.get("url", "")
    if not (kind in _KINDS_BELOW and isinstance(url, str)):
        return None
    if not isinstance(schema, dict | None):
        return None
    try:
        return _checked(InputRequest(cast("InputKind", kind), message, schema, url))
    except ToolError:
        return None


def _text(value: object) -> str:
    return well_formed(value[:MESSAGE_CHARS]) if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class InputReply:
    """A request to answer a call's question. `subject` and `caller` are as in `InputReceived`.

    Repeats of an `input_id` are the same answer.
    """

    action: InputAction
    content: JSONObject | None = None
    subject: str = ""
    caller: str = ""
    input_id: str = ""


def find_input(records: Sequence[Record], call_id: str) -> Wait:
    """Return a call's open question.

    Raises `InputNotFound`, `AlreadyAnswered`, or `RunEnded` if the run ended without an answer.
    """
    return find_open(records, inputs_of(records), call_id, InputNotFound, AlreadyAnswered)


def is_answered_by(records: Sequence[Record], received: InputReceived) -> bool:
    """Whether this answer is logged; if another one is, raises as `find_input`."""
    for wait in inputs_of(records):
        if wait.answered and wait.answered.metadata["input_id"] == received.input_id:
            return True
    if find_input(records, received.call_id).requested.seq != received.seq:
        raise AlreadyAnswered("already answered: the call asks something else now")
    return False


def received_event(asked: Record, reply: InputReply, input_id: str) -> InputReceived:
    """Make the event of an answer. Raises `InvalidRequest` with the invalid path."""
    request = cast("InputRequested", event_of(asked)).request
    content = reply.content
    needs_content = reply.action == "accept" and request.kind in {"form", "caller_tool"}
    if (content is not None) != needs_content:
        text = "content is required to accept a form, and allowed only there"
        raise InvalidRequest(text, param="content")
    if content is not None and request.kind == "form":  # a request's size bounds a result
        _check_content(content, request.schema)
    call_id = str(asked.metadata["call_id"])
    return InputReceived(
        call_id,
        reply.action,
        reply.input_id or input_id,
        asked.seq,
        content,
        reply.subject,
        reply.caller,
    )


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
