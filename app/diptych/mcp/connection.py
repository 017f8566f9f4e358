"""One connection to one MCP server, and the calls on it.

The SDK's client cancels the task that entered it when something breaks. So each connection has a
task of its own, which enters and leaves the client and does nothing else; callers borrow the
client.
"""

import asyncio
import re
from collections.abc import Callable

import anyio
import httpx2
import jsonschema
import mcp_types
from mcp import Client, ClientSession, MCPError
from mcp.client import InputRequiredRoundsExceededError
from pydantic import ValidationError

from diptych.core.errors import ToolError
from diptych.core.messages import JSONObject
from diptych.core.text import one_line
from diptych.mcp.output import NoAnswer, add_note, notes_of
from diptych.mcp.tool_listing import ToolListing, not_valid
from diptych.mcp.transport import RequestOutcome, Stage, connect_reason
from diptych.net.redaction import SECRETS
from diptych.ports import Progress

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
"""What the SDK, and the validator of output schemas, raise for an answer that is not valid."""


class CallNotSent(Exception):
    """A call that reached no tool; a new connection may reach it if `may_retry`."""

    def __init__(self, reason: str, *, may_retry: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_retry = may_retry


class Connection:
    """One connection to a server. `run` is its life, in a task of its own.

    `attempted` is set when the attempt to connect is over, however it ended; `check_requested` when
    the supervisor should list the tools now, `ended` when the connection is given up, and `reason`
    says why. `tools` are the tools of the last list, `listing` how it was read.
    """

    def __init__(self, make_client: Callable[["Connection"], Client]) -> None:
        self.listing = ToolListing()
        self.tools: list[mcp_types.Tool] = []
        self.attempted = asyncio.Event()
        self.check_requested = asyncio.Event()
        self.ended = asyncio.Event()
        self.reason: str | None = None
        self._make_client = make_client
        self._client: Client | None = None
        self._calls = 0
        self._is_closed = False
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._client is not None and self.reason is None

    def drain(self, reason: str) -> None:
        """Give the connection up; calls under way may still return. The first reason stays."""
        self.reason = self.reason or reason
        self.ended.set()
        self.check_requested.set()
        self._changed.set()

    def close(self) -> None:
        """Give the connection up with all its calls."""
        self._is_closed = True
        self.drain("closed")

    def request_check(self) -> None:
        """Have the supervisor check whether the server is there and what it lists."""
        self.check_requested.set()

    async def run(self) -> None:
        """Connect, list the tools, and stay until `drain` or `close`. Sets `attempted`."""
        outcome = RequestOutcome(is_handshake=True, on_stream_end=self.request_check)
        try:
            with outcome.recording():
                async with self._make_client(self) as client:
                    self.tools = await self._list_tools(client)
                    outcome.is_handshake = False
                    outcome.stop_counting()
                    self._check_results(client.session)
                    self._client = client
                    self.attempted.set()
                    await self._wait_for_end()
        except (*MALFORMED_ANSWER_ERRORS, CallNotSent, MCPError, httpx2.HTTPError) as error:
            self.drain(_unavailable_reason(outcome, error))
        finally:
            self.drain("closed")
            self.attempted.set()

    async def refresh_tools(self) -> None:
        """List the tools again. Gives the connection up if the server does not answer."""
        if self._client is None:
            return
        outcome = RequestOutcome()
        try:
            with outcome.recording():
                self.tools = await self._list_tools(self._client)
        except (*MALFORMED_ANSWER_ERRORS, MCPError) as error:
            self.drain(_unavailable_reason(outcome, error))

    async def call(
        self, name: str, arguments: JSONObject, on_progress: Progress
    ) -> mcp_types.CallToolResult:
        """Call a tool; cancelling this cancels the call at the server.

        Raises `CallNotSent` or `ToolError`, which is a `NoAnswer` if the tool may have run.
        """
        if self._client is None or not self.is_open:
            raise CallNotSent(self.reason or "not connected yet")

        async def report(progress: float, total: float | None, message: str | None) -> None:
            done = f"{progress:g}"
            on_progress(message or (done if total is None else f"{done} of {total:g}"))

        outcome = RequestOutcome()
        self._calls += 1
        try:
            with outcome.recording():
                return await self._client.call_tool(name, dict(arguments), progress_callback=report)
        except MCPError as error:
            raise self._explain(outcome, error) from error
        except InputRequiredRoundsExceededError as error:
            text = f"{name} asks for input in the middle of a call, which is not supported"
            raise ToolError("failed", text) from error
        except ValidationError as error:
            raise NoAnswer(f"the answer of {name} is {not_valid(error)}") from error
        except MALFORMED_ANSWER_ERRORS as error:
            raise NoAnswer(f"the answer of {name} is not valid MCP") from error
        finally:
            self._calls -= 1
            self._changed.set()

    def _explain(self, outcome: RequestOutcome, error: MCPError) -> CallNotSent | ToolError:
        """Return what a call's error means, and give the connection up if it means that, too."""
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
                self.request_check()
                return NoAnswer(f"no answer came: {reason}")
            case Stage.UNUSABLE:
                return NoAnswer(reason)
        if error.code == mcp_types.CONNECTION_CLOSED and self.reason is not None:
            return NoAnswer(f"no answer came: {self.reason}")
        if error.code == mcp_types.PARSE_ERROR and outcome.stage is Stage.STREAMING:
            return NoAnswer("its answer is not JSON-RPC")  # the SDK says so, not the server
        return ToolError("failed", reason)

    async def _list_tools(self, client: Client) -> list[mcp_types.Tool]:
        """Read the list; a check requested from now on may concern a later list."""
        self.check_requested.clear()
        return await self.listing.read(client)

    def _check_results(self, session: ClientSession) -> None:
        """Note what does not fit an output schema; the SDK would refuse a result that came."""
        validate = session.validate_tool_result

        async def check(name: str, result: mcp_types.CallToolResult) -> None:
            try:
                await validate(name, result)
            except (MCPError, *MALFORMED_ANSWER_ERRORS) as error:
                if result.structured_content is None and not notes_of(result):
                    add_note(result, "it has no structured content, which its output schema needs")
                elif isinstance(error.__cause__, jsonschema.ValidationError):
                    add_note(result, "its structured content does not fit its output schema")
                # Otherwise the schema cannot be used, and checks nothing.

        session.validate_tool_result = check  # type: ignore[method-assign]

    async def _wait_for_end(self) -> None:
        while not self._is_closed and (self.is_open or self._calls):
            await self._changed.wait()
            self._changed.clear()


def _unavailable_reason(outcome: RequestOutcome, error: BaseException) -> str:
    """Say in a few words why there is no connection; in the server's words if it says so itself."""
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
            return f"answers with an error: {one_line(SECRETS.redact(message), 200)}"
        case OSError() | httpx2.HTTPError():
            return connect_reason(error)
        case ValidationError():
            return f"its answer is {not_valid(error)}"
    return "its answer is not valid MCP"
