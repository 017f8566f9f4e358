"""One connection to one MCP server, and the calls on it.

When something breaks, the SDK's client cancels the task that entered it. So each connection has a
task of its own that only enters and leaves the client; callers use the client from their own tasks.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import TypeVar

import anyio
import httpx2
import jsonschema
import mcp_types
from mcp import Client, ClientSession, MCPError
from mcp.client import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.jsonrpc import HEADER_MISMATCH
from pydantic import ValidationError

from diptych.core.errors import ToolError
from diptych.core.messages import JSONObject
from diptych.core.text import one_line
from diptych.mcp.output import NoAnswer, add_note, notes_of
from diptych.mcp.questions import OpenCall, Send, answered, elicit_result
from diptych.mcp.server_messages import ServerMessages, wanted_level
from diptych.mcp.tool_listing import ToolListing, not_valid
from diptych.mcp.tool_rules import READ_RESOURCE
from diptych.mcp.transport import RequestOutcome, Stage, connect_reason
from diptych.net.redaction import SECRETS

MALFORMED_ANSWER_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    re.error,
    ExceptionGroup,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
)
"""Raised by the SDK, and the validator of output schemas, for an invalid answer."""

OPTIONAL_TIMEOUT = 1.0  # seconds, for what a connection can do without

ResultT = TypeVar("ResultT")
_CALL: ContextVar[OpenCall] = ContextVar("mcp_call")
"""The call on whose HTTP stream a message arrives: the SDK handles it in the call's context."""


class CallNotSent(Exception):
    """A call that reached no tool. With `may_retry`, a new connection may succeed."""

    def __init__(self, reason: str, *, may_retry: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_retry = may_retry


class Connection:
    """One connection to a server. `run` connects and holds it open, in a task of its own.

    Events: `attempted`, the attempt to connect has succeeded or failed; `check_requested`, the
    supervisor should list the tools now; `ended`, the connection takes no more calls, for `reason`.
    `tools` are the tools of the last listing, `listing` has its problems. `server_info` is the name
    and version by which the server calls itself. `has_resources`: it had some when the connection
    opened. `may_be_older`: the attempt failed as with servers of the older transport HTTP+SSE.
    """

    def __init__(
        self, make_client: Callable[["Connection"], Client], messages: ServerMessages
    ) -> None:
        self.listing = ToolListing()
        self.tools: list[mcp_types.Tool] = []
        self.server_info: mcp_types.Implementation | None = None
        self.attempted = asyncio.Event()
        self.check_requested = asyncio.Event()
        self.ended = asyncio.Event()
        self.reason: str | None = None
        self.has_resources = False
        self.may_be_older = False
        self._make_client = make_client
        self._messages = messages
        self._client: Client | None = None
        self._calls: list[OpenCall] = []
        self._listening: asyncio.Task[None] | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether the connection accepts calls."""
        return self._client is not None and self.reason is None

    @property
    def reads_resources(self) -> bool:
        """Whether to offer our own tool for reading resources; a server's own goes first."""
        return self.has_resources and all(tool.name != READ_RESOURCE for tool in self.tools)

    def drain(self, reason: str) -> None:
        """Accept no more calls, and end once the running ones return. The first reason stays."""
        self.reason = self.reason or reason
        self.ended.set()
        self.check_requested.set()
        self._changed.set()

    def close(self) -> None:
        """End the connection with all its calls."""
        self._is_closed = True
        self.drain("closed")

    async def run(self) -> None:
        """Connect, list the tools, and hold the connection until `drain` or `close`."""
        outcome = RequestOutcome(is_handshake=True, on_stream_end=self.check_requested.set)
        try:
            with outcome.recording():
                async with self._make_client(self) as client:
                    self.tools = await self._list_tools(client)
                    self.server_info = client.server_info
                    outcome.is_handshake = False
                    outcome.stop_counting()
                    self._check_results(client.session)
                    client.session.dispatch_input_request = self._answer  # type: ignore[assignment, method-assign]
                    with suppress(TimeoutError, MCPError, *MALFORMED_ANSWER_ERRORS):
                        async with asyncio.timeout(OPTIONAL_TIMEOUT):
                            await _set_log_level(client)
                            self.has_resources = await _has_resources(client)
                    self._client = client
                    self.attempted.set()
                    self._listen(client)
                    await self._wait_for_end()
        except (*MALFORMED_ANSWER_ERRORS, CallNotSent, MCPError, httpx2.HTTPError) as error:
            self.drain(_unavailable_reason(outcome, error))
            self.may_be_older = outcome.may_be_older
        finally:
            if self._listening is not None:
                self._listening.cancel()
            self.drain("closed")
            self.attempted.set()

    async def refresh_tools(self) -> None:
        """List the tools again. Drains the connection if that fails."""
        if self._client is None:
            return
        outcome = RequestOutcome()
        try:
            with outcome.recording():
                self.tools = await self._list_tools(self._client)
            self._listen(self._client)
        except (*MALFORMED_ANSWER_ERRORS, MCPError) as error:
            self.drain(_unavailable_reason(outcome, error))

    async def call(
        self, call: OpenCall, arguments: JSONObject, on_progress: ProgressFnT
    ) -> mcp_types.CallToolResult:
        """Call a tool; cancelling this cancels the call at the server.

        Raises `CallNotSent`, `NoAnswer` if the tool may have run, or another `ToolError`.
        """
        session = self._session()
        return await self._send(
            call,
            lambda responses, state: session.call_tool(
                call.name,
                dict(arguments),
                progress_callback=on_progress,
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
            ),
        )

    async def read_resource(self, call: OpenCall, uri: str) -> mcp_types.CallToolResult:
        """Read a resource, as the result of a call. Raises as `call` does."""
        session = self._session()
        read = await self._send(
            call,
            lambda responses, state: session.read_resource(
                uri, input_responses=responses, request_state=state, allow_input_required=True
            ),
        )
        return mcp_types.CallToolResult(
            content=[
                mcp_types.EmbeddedResource(type="resource", resource=each) for each in read.contents
            ]
        )

    def _session(self) -> ClientSession:
        if self._client is None or not self.is_open:
            raise CallNotSent(self.reason or "not connected yet")
        return self._client.session

    async def _send(self, call: OpenCall, send: Send[ResultT]) -> ResultT:
        outcome = RequestOutcome()

        async def send_listed(
            responses: mcp_types.InputResponses | None, state: str | None
        ) -> ResultT | mcp_types.InputRequiredResult:
            try:
                return await send(responses, state)
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
            await self.refresh_tools()  # the tool's schema, which names headers, has changed
            return await send(responses, state)

        self._calls.append(call)
        token = _CALL.set(call)
        try:
            with outcome.recording():
                return await answered(call, send_listed)
        except MCPError as error:
            raise self._explain(outcome, error) from error
        except ValidationError as error:
            raise NoAnswer(f"the answer of {call.name} is {not_valid(error)}") from error
        except MALFORMED_ANSWER_ERRORS as error:
            raise NoAnswer(f"the answer of {call.name} is not valid MCP") from error
        finally:
            _CALL.reset(token)
            call.end()
            self._calls.remove(call)
            self._changed.set()

    def complete_page(self, page: str) -> None:
        """Accept the question about a page, which the server says was completed."""
        for call in self._calls:
            call.complete_page(page)

    async def _answer(
        self, _: ClientRequestContext, request: mcp_types.InputRequest
    ) -> mcp_types.InputResponse | mcp_types.ErrorData:
        """Answer a request that the server sends during a call (up to 2025-11-25)."""
        if not isinstance(request, mcp_types.ElicitRequest):
            return self._messages.refuse(request.method)
        if (call := self._asking_call()) is None:
            text = "no call is open that could ask this, or several, of different runs"
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message=text)
        try:
            return elicit_result(request, await call.ask(request))
        except ToolError as error:
            return mcp_types.ErrorData(code=mcp_types.INVALID_PARAMS, message=error.message)

    def _asking_call(self) -> OpenCall | None:
        """Return the call on whose stream the server asks; None if that cannot be told.

        A command, and HTTP+SSE, has one stream for all calls: then it is the newest, if all are of
        one run.
        """
        call = _CALL.get(None)
        if call in self._calls:
            return call
        runs = {each.context.run_id for each in self._calls}
        return self._calls[-1] if len(runs) == 1 else None

    def _listen(self, client: Client) -> None:
        """Listen for changes of the list of tools, if the server announces them (2026-07-28)."""
        is_first = self._listening is None
        if self._listening is not None and not self._listening.done():
            return
        announced = client.server_capabilities.tools
        if announced and announced.list_changed and client.session.discover_result:
            self._listening = asyncio.create_task(self._request_checks(client, is_first))

    async def _request_checks(self, client: Client, is_first: bool) -> None:
        outcome = RequestOutcome(received=None)
        with outcome.recording(), suppress(MCPError, *MALFORMED_ANSWER_ERRORS):
            async with client.listen(tools_list_changed=True) as changes:
                if is_first:  # it may have changed since it was listed
                    self.check_requested.set()
                async for _ in changes:
                    self.check_requested.set()

    def _explain(self, outcome: RequestOutcome, error: MCPError) -> CallNotSent | ToolError:
        """Translate a call's error; drain the connection if it is broken."""
        reason = outcome.reason or error.message
        match outcome.stage:
            case Stage.NOT_SENT:
                self.drain(reason)
                return CallNotSent(reason)
            case Stage.REJECTED:
                self.drain(reason)
                return CallNotSent(reason, may_retry=False)
            case Stage.LOST:
                self.drain(reason)
                return NoAnswer(f"no answer came: {reason}")
            case Stage.SERVER_ERROR:
                self.check_requested.set()
                return NoAnswer(f"no answer came: {reason}")
            case Stage.UNUSABLE:
                return NoAnswer(reason)
        if error.code == mcp_types.CONNECTION_CLOSED and self.reason is not None:
            return NoAnswer(f"no answer came: {self.reason}")
        if error.code == mcp_types.PARSE_ERROR and outcome.stage is Stage.STREAMING:
            return NoAnswer("its answer is not JSON-RPC")  # the SDK's error, not the server's
        return ToolError("failed", reason)

    async def _list_tools(self, client: Client) -> list[mcp_types.Tool]:
        """List the tools. A check requested while that runs leads to another listing."""
        self.check_requested.clear()
        return await self.listing.read(client)

    def _check_results(self, session: ClientSession) -> None:
        """Turn violations of output schemas into notes; the SDK would reject the whole result."""
        validate = session.validate_tool_result

        async def check(name: str, result: mcp_types.CallToolResult) -> None:
            try:
                await validate(name, result)
            except (MCPError, *MALFORMED_ANSWER_ERRORS) as error:
                if result.structured_content is None and not notes_of(result):
                    add_note(result, "it lacks the structured content that its output schema needs")
                elif isinstance(error.__cause__, jsonschema.ValidationError):
                    add_note(result, "its structured content does not match its output schema")
                # Otherwise the schema itself is invalid, and is ignored.

        session.validate_tool_result = check  # type: ignore[method-assign]

    async def _wait_for_end(self) -> None:
        while not self._is_closed and (self.is_open or self._calls):
            await self._changed.wait()
            self._changed.clear()


async def _set_log_level(client: Client) -> None:
    """Ask for log messages that reach our log; since 2026-07-28 each request asks for them."""
    if client.session.initialize_result and client.server_capabilities.logging:
        params = mcp_types.SetLevelRequestParams(level=wanted_level())
        with suppress(MCPError):  # some that declare logging do not know it
            await client.session.send_request(
                mcp_types.SetLevelRequest(params=params), mcp_types.EmptyResult
            )


async def _has_resources(client: Client) -> bool:
    """Whether the server has resources now. Most that declare the capability have none."""
    if not client.server_capabilities.resources:
        return False
    with RequestOutcome().recording():
        return bool(
            (await client.list_resources()).resources
            or (await client.list_resource_templates()).resource_templates
        )


def _unavailable_reason(outcome: RequestOutcome, error: BaseException) -> str:
    """Return in a few words why the connection failed, if possible in the server's own words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case _ if outcome.reason:
            return outcome.reason
        case CallNotSent(reason=reason):
            return reason
        case MCPError(code=mcp_types.METHOD_NOT_FOUND):
            return "offers no tools"
        case MCPError(message=message):
            return f"responds with an error: {one_line(SECRETS.redact(message), 200)}"
        case OSError() | httpx2.HTTPError():
            return connect_reason(error)
        case ValidationError():
            return f"its answer is {not_valid(error)}"
    return "its answer is not valid MCP"
