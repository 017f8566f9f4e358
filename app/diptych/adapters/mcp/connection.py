"""One connection to one MCP server, and the calls on it.

The SDK's client cancels the task that entered it when something breaks. So each link has a task of
its own, which enters and leaves the client and does nothing else; callers only borrow the client.

Not here: how a server is reached (`wire`, `stdio`), when a link is made (`session`).
"""

import asyncio
import re
from collections.abc import Callable

import anyio
import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp.client import InputRequiredRoundsExceededError

from diptych.adapters.mcp.transport import FATE, Fate, connect_reason
from diptych.errors import ToolError
from diptych.loop.messages import JSONObject
from diptych.ports import Progress

MOST_PAGES = 100
"""A listing of tools that never ends is cut here."""

UNFIT = (
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
"""What the SDK, and the validator of output schemas, raise over answers that make no sense."""


class Unsent(Exception):
    """A call that never reached a tool; `again` if it may reach it on a new connection."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again


class Link:
    """One connection to a server: `hold` is its life, in a task of its own."""

    def __init__(self, client: Callable[["Link"], Client]) -> None:
        self._make_client = client
        self._dropped = False
        self._client: Client | None = None
        self._calls = 0
        self._moved = asyncio.Event()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stir = asyncio.Event()
        self.reason: str | None = None
        self.listed: list[mcp_types.Tool] = []

    @property
    def is_up(self) -> bool:
        return self._client is not None and self.reason is None

    def end(self, reason: str) -> None:
        """Give the link up; calls on it may still return."""
        if self.reason is None:
            self.reason = reason
            self.stir.set()
            self._moved.set()

    def doubt(self) -> None:
        """Have the keeper look whether the server is there and what it lists."""
        self.stir.set()

    def drop(self) -> None:
        """Give the link up with all calls on it."""
        self._dropped = True
        self.end("closed")

    async def hold(self) -> None:
        """Connect, list the tools, stay until `end`. `ready` is set either way; see `is_up`."""
        fate = Fate(connecting=True, ended=self.doubt)
        FATE.set(fate)
        try:
            async with self._make_client(self) as client:
                self.listed = await _list_tools(client)
                fate.connecting = False
                self._client = client
                self.ready.set_result(None)
                await self._stay()
        except (*UNFIT, Unsent, MCPError, httpx2.HTTPError) as error:
            self.end(_why(fate, error))
        finally:
            self.end("closed")
            if not self.ready.done():
                self.ready.set_result(None)

    async def look(self) -> None:
        """List the tools again. Ends the link if the server does not answer."""
        if self._client is None:
            return
        fate = Fate()
        FATE.set(fate)
        try:
            self.listed = await _list_tools(self._client)
        except (*UNFIT, MCPError) as error:
            self.end(_why(fate, error))

    async def call(
        self, name: str, arguments: JSONObject, tell: Progress
    ) -> mcp_types.CallToolResult:
        """Call a tool. Raises `Unsent` or `ToolError`; cancelling it cancels it at the server."""
        if self._client is None or self.reason is not None:
            raise Unsent(self.reason or "not connected yet")

        async def told(progress: float, total: float | None, message: str | None) -> None:
            tell(message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}"))

        fate = Fate()
        token = FATE.set(fate)
        self._calls += 1
        try:
            return await self._client.call_tool(name, dict(arguments), progress_callback=told)
        except MCPError as error:
            raise self._verdict(fate, error) from error
        except InputRequiredRoundsExceededError as error:
            text = f"{name} asks for input in the middle of a call, which is not supported"
            raise ToolError("failed", text) from error
        except UNFIT as error:
            text = f"the answer of {name} does not fit its output schema or the protocol"
            raise ToolError("failed", text) from error
        finally:
            FATE.reset(token)
            self._calls -= 1
            self._moved.set()

    def _verdict(self, fate: Fate, error: MCPError) -> Unsent | ToolError:
        """Say what a call's error means, and end the link if it means that, too."""
        if fate.unsent is not None:
            self.end(fate.unsent)
            return Unsent(fate.unsent, again=not fate.by_status)
        lost = fate.lost
        if lost is None and error.code == mcp_types.CONNECTION_CLOSED:
            lost = self.reason
        if lost is None:
            if error.code == mcp_types.PARSE_ERROR:  # the SDK's words are those of its parser
                return ToolError("failed", "the answer is no JSON-RPC message")
            return ToolError("failed", fate.refused or error.message)
        if fate.by_status:
            self.doubt()
        else:
            self.end(lost)
        return ToolError("unknown", f"it was sent, but no answer came: {lost}")

    async def _stay(self) -> None:
        while self.reason is None or (self._calls and not self._dropped):
            await self._moved.wait()
            self._moved.clear()


async def _list_tools(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _why(fate: Fate, error: BaseException) -> str:
    """Say in a few words why there is no connection; never in the words of the server."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case _ if said := fate.unsent or fate.lost or fate.refused:
            return said
        case Unsent(reason=reason):
            return reason
        case MCPError():
            return "answers with an error"
        case OSError() | httpx2.HTTPError():
            return connect_reason(error)
    return "answers what makes no sense"
