"""One connection to one MCP server, and the calls on it.

When something breaks, the SDK's client cancels the task that entered it. So each connection has a
task of its own that only enters and leaves the client; callers use the client from their own tasks.
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
from mcp.shared.dispatcher import ProgressFnT
from pydantic import ValidationError

from diptych.core.errors import ToolError
from diptych.core.messages import JSONObject
from diptych.core.text import one_line
from diptych.mcp.output import NoAnswer, add_note, notes_of
from diptych.mcp.tool_listing import ToolListing, not_valid
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
    and version by which the server calls itself.
    """

    def __init__(self, make_client: Callable[["Connection"], Client]) -> None:
        self.listing = ToolListing()
        self.tools: list[mcp_types.Tool] = []
        self.server_info: mcp_types.Implementation | None = None
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
        """Whether the connection accepts calls."""
        return self._client is not None and self.reason is None

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
                    self._client = client
                    self.attempted.set()
                    await self._wait_for_end()
        except (*MALFORMED_ANSWER_ERRORS, CallNotSent, MCPError, httpx2.HTTPError) as error:
            self.drain(_unavailable_reason(outcome, error))
        finally:
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
        except (*MALFORMED_ANSWER_ERRORS, MCPError) as error:
            self.drain(_unavailable_reason(outcome, error))

    async def call(
        self, name: str, arguments: JSONObject, on_progress: ProgressFnT
    ) -> mcp_types.CallToolResult:
        """Call a tool; cancelling this cancels the call at the server.

        Raises `CallNotSent`, `NoAnswer` if the tool may have run, or another `ToolError`.
        """
        if self._client is None or not self.is_open:
            raise CallNotSent(self.reason or "not connected yet")

        outcome = RequestOutcome()
        self._calls += 1
        try:
            with outcome.recording():
                return await self._client.call_tool(
                    name, dict(arguments), progress_callback=on_progress
                )
        except MCPError as error:
            raise self._explain(outcome, error) from error
        except InputRequiredRoundsExceededError as error:
            text = f"{name} requests input during a call, which is not supported"
            raise ToolError("failed", text) from error
        except ValidationError as error:
            raise NoAnswer(f"the answer of {name} is {not_valid(error)}") from error
        except MALFORMED_ANSWER_ERRORS as error:
            raise NoAnswer(f"the answer of {name} is not valid MCP") from error
        finally:
            self._calls -= 1
            self._changed.set()

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
