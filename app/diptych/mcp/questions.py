"""Questions of servers to people (elicitation), in both eras of the protocol.

Up to 2025-11-25 a server asks over the open connection of a call. Since 2026-07-28 it returns its
questions in place of a result, and the call is sent again with the answers; the state for that is
recorded, so another process can continue the call.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

import mcp_types
from mcp import MCPError
from mcp_types.jsonrpc import URL_ELICITATION_REQUIRED
from pydantic import TypeAdapter, ValidationError

from diptych.core.errors import ToolError
from diptych.core.events import InputRequest
from diptych.core.messages import JSON
from diptych.ports import CallContext, InputAnswer, ask_nobody

MAX_ROUNDS = 10  # in which a call is sent again, as in the SDK
MAX_QUESTIONS = 20  # of one call
MAX_STATE_CHARS = 64 * 1024  # of what is recorded for another process
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0  # seconds before a call without questions is sent again

ResultT = TypeVar("ResultT")
Send: TypeAlias = Callable[
    [mcp_types.InputResponses | None, str | None],
    Awaitable[ResultT | mcp_types.InputRequiredResult],
]
_ACCEPTED = InputAnswer("accept")
_CANCELLED = InputAnswer("cancel")


class OpenCall:
    """A call in progress. Its time limit pauses while it waits for an answer."""

    def __init__(self, name: str, context: CallContext, seconds: float) -> None:
        self.name = name
        self.context = context
        self.timeout = asyncio.timeout(seconds)
        self._asked = 0
        self._one_at_a_time = asyncio.Lock()
        self._pages: dict[str | None, asyncio.Future[None]] = {}
        self._end = asyncio.get_running_loop().create_future()

    async def ask(self, request: mcp_types.ElicitRequest, state: JSON = None) -> InputAnswer:
        """Return the answer to a question: `cancel` if the call ends before, `accept` if the server
        says that the page was completed. Raises `ToolError` if the question cannot be asked.
        """
        question, page = _question(request.params), getattr(request.params, "elicitation_id", None)
        self._asked += 1
        if self._asked > MAX_QUESTIONS:
            raise ToolError("failed", f"{self.name} asks more than {MAX_QUESTIONS} questions")
        async with self._one_at_a_time:
            completed = self._pages[page] = asyncio.get_running_loop().create_future()
            asking = asyncio.ensure_future(self._paused(question, state))
            try:
                ends = {asking, completed, self._end}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if asking.done() and not asking.cancelled():
                    return asking.result()
                return _ACCEPTED if completed.done() else _CANCELLED
            finally:
                asking.cancel()
                del self._pages[page]

    def complete_page(self, page: str) -> None:
        """Accept the question about a page, if it is open."""
        if (completed := self._pages.get(page)) and not completed.done():
            completed.set_result(None)

    def end(self) -> None:
        """Cancel the questions of the call, which has ended."""
        self._end.cancel()

    async def _paused(self, question: InputRequest, state: JSON) -> InputAnswer:
        loop = asyncio.get_running_loop()
        seconds_left = (self.timeout.when() or loop.time()) - loop.time()
        self.timeout.reschedule(None)
        try:
            return await self.context.ask(question, state)
        finally:
            if not self._end.done():
                self.timeout.reschedule(loop.time() + seconds_left)


async def answered(call: OpenCall, send: Send[ResultT]) -> ResultT:
    """Send a call, and again with the answers to its questions, until it has a result.

    Raises `ToolError` if it needs anything but elicitation, or asks too often.
    """
    questions, pause = _Questions.resumed(call), FIRST_PAUSE
    may_need_pages = call.context.ask is not ask_nobody and not questions.of_error
    for _ in range(MAX_ROUNDS + 1):
        responses = await questions.ask(call)
        try:
            result = await send(responses, questions.state)
        except MCPError as error:
            if not may_need_pages or (pages := _Questions.of(error)) is None:
                raise
            questions, may_need_pages = pages, False
        else:
            if not isinstance(result, mcp_types.InputRequiredResult):
                return result
            questions = _Questions(result.input_requests or {}, result.request_state)
        if not questions.requests:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
    raise ToolError("failed", f"{call.name} asked more than {MAX_ROUNDS} times")


@dataclass
class _Questions:
    """The questions of one round, and the answers so far.

    `of_error`: the call was refused until pages are completed.
    """

    requests: dict[str, mcp_types.InputRequest] = field(default_factory=dict)
    state: str | None = None
    responses: dict[str, mcp_types.ElicitResult] = field(default_factory=dict)
    of_error: bool = False

    @classmethod
    def of(cls, error: MCPError) -> "_Questions | None":
        """Return the pages that an error requires; None if it is another error."""
        if error.code != URL_ELICITATION_REQUIRED:
            return None
        try:
            data = mcp_types.ElicitationRequiredErrorData.model_validate(error.error.data)
        except ValidationError:
            return None
        pages = enumerate(data.elicitations)
        return cls({str(n): mcp_types.ElicitRequest(params=p) for n, p in pages}, of_error=True)

    @classmethod
    def resumed(cls, call: OpenCall) -> "_Questions":
        """Return what another process asked, if it did, with the answer that came since."""
        if (resumed := call.context.resumed) is None:
            return cls()
        questions = _RECORD.validate_python(resumed.state)
        questions.answer_next(resumed.answer)
        return questions

    async def ask(self, call: OpenCall) -> mcp_types.InputResponses | None:
        """Ask what is open, one question after another; return the responses to send."""
        for request in self.requests.values():
            if not isinstance(request, mcp_types.ElicitRequest):
                raise ToolError("failed", f"{call.name} needs {refusal(request.method)}")
        while asked := self._next():
            self.answer_next(await call.ask(asked[1], self._record()))
        if not self.of_error:
            return dict(self.responses) or None
        if any(response.action != "accept" for response in self.responses.values()):
            raise ToolError("failed", f"{call.name} needs a page that nobody completed")
        return None

    def _next(self) -> tuple[str, mcp_types.ElicitRequest] | None:
        for key, request in self.requests.items():
            if key not in self.responses and isinstance(request, mcp_types.ElicitRequest):
                return key, request
        return None

    def answer_next(self, answer: InputAnswer) -> None:
        """Record the answer to the open question."""
        if asked := self._next():
            self.responses[asked[0]] = elicit_result(asked[1], answer)

    def _record(self) -> JSON:
        """Return what another process needs to continue; None if it is too large to be logged."""
        record: JSON = _RECORD.dump_python(self, by_alias=True, mode="json", exclude_none=True)
        return record if len(json.dumps(record)) <= MAX_STATE_CHARS else None


_RECORD = TypeAdapter(_Questions)


def refusal(method: str) -> str:
    """Name a request of a server that we do not support."""
    name = {"sampling/createMessage": "sampling", "roots/list": "roots"}.get(method, method)
    return f"{name}, which Diptych does not offer"


def elicit_result(request: mcp_types.ElicitRequest, answer: InputAnswer) -> mcp_types.ElicitResult:
    """Return the response; the schema's defaults fill in for fields left out."""
    if answer.action != "accept" or isinstance(request.params, mcp_types.ElicitRequestURLParams):
        return mcp_types.ElicitResult(action=answer.action)
    properties = request.params.requested_schema.get("properties")
    fields = properties.items() if isinstance(properties, dict) else ()
    defaults = {k: v["default"] for k, v in fields if isinstance(v, dict) and "default" in v}
    content = {**defaults, **(answer.content or {})}
    return mcp_types.ElicitResult.model_validate({"action": "accept", "content": content})


def _question(params: mcp_types.ElicitRequestParams) -> InputRequest:
    if isinstance(params, mcp_types.ElicitRequestURLParams):
        if urlsplit(params.url).scheme not in ("http", "https"):
            raise ToolError("failed", "it asks to open a URL that is not http or https")
        return InputRequest("url", params.message, url=params.url)
    return InputRequest("form", params.message, schema=params.requested_schema)
