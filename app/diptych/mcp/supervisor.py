"""Supervises one MCP server: connects, monitors the connection, and reconnects.

Neither the SDK's `Client` nor its `ClientSessionGroup` reconnects.
"""

import asyncio
import functools
import logging
import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import httpx2
import mcp_types
from mcp import Client
from mcp.client import ClientRequestContext, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.shared.dispatcher import ProgressFnT

from diptych.core import prompt
from diptych.core.catalog import Tool, Unavailable
from diptych.core.errors import ToolError
from diptych.core.messages import CallOutput, JSONObject
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import ConnectionSettings
from diptych.mcp.connection import CallNotSent, Connection
from diptych.mcp.functions import function_server
from diptych.mcp.output import NoAnswer, call_output
from diptych.mcp.questions import OpenCall
from diptych.mcp.server_messages import ServerMessages, wanted_level
from diptych.mcp.sse_transport import sse_transport
from diptych.mcp.stdio import stdio_transport
from diptych.mcp.tool_listing import ToolListing
from diptych.mcp.tool_rules import (
    CHANGED,
    READ_RESOURCE,
    RESOURCE_READER,
    allows,
    audit_changed,
    catalog_tools,
    changed_entry,
    changed_tools,
    digests,
    named_by,
    timeout_of,
    usable_tools,
)
from diptych.mcp.transport import Authorize, http_client
from diptych.net.backoff import Backoff
from diptych.net.received import MAX_ANSWER_BYTES
from diptych.net.redaction import SECRETS
from diptych.ports import CallContext

logger = logging.getLogger(__name__)

NOT_CONNECTED_YET = "not connected yet"
_NOBODY = CallContext(lambda _: None)


class ServerSupervisor:
    """Supervises one server from `start` to `close`, whatever fails in between.

    `tools` are the usable tools of the last listing, if there was one (`has_listed`). `left_out`
    describes the unusable ones; `changed` names those that differ from their pins. `first_attempt`
    is set when the first attempt to connect has ended.
    """

    def __init__(
        self,
        server: ToolServerConfig,
        settings: ConnectionSettings,
        authorize: Authorize | None = None,
        *,
        can_ask: bool = True,
    ) -> None:
        self.server = server
        self.tools: tuple[Tool, ...] = ()
        self.left_out: tuple[Unavailable, ...] = ()
        self.changed: Collection[str] = ()
        self.has_listed = False
        self.first_attempt = asyncio.Event()
        self._settings = settings
        self._can_ask = can_ask
        self._messages = ServerMessages(server.name)
        self._functions = function_server(server) if server.functions else None
        self._http: httpx2.AsyncClient | None = None
        self._authorize = authorize
        self._connection: Connection | None = None
        self._last_reason: str | None = NOT_CONNECTED_YET
        self._reconnect = asyncio.Event()
        self._next_attempt = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}

    @property
    def reason(self) -> str | None:
        """Why the server is unavailable, in a few words; None if it is available."""
        return self._last_reason if self._connection is None else self._connection.reason

    @property
    def server_info(self) -> mcp_types.Implementation | None:
        """The name and version by which the connected server calls itself."""
        return self._connection.server_info if self._connection else None

    def digests(self) -> dict[str, str]:
        """Return the digests of the listed tools that the manifest allows."""
        listed = self._connection.tools if self._connection else ()
        return digests(tool for tool in listed if allows(self.server, tool.name))

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise(), name=f"mcp {self.server.name}")

    def reconnect_now(self) -> None:
        """If the server is unavailable, reconnect now, without waiting for the backoff."""
        if self.reason is not None:
            self._reconnect.set()

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        """Return the tools that can be called now, and what is unavailable or left out."""
        if (reason := self.reason) is None:
            return self.tools, self.left_out
        offered = tuple(tool.name for tool in self.tools)
        names = offered if self.has_listed else named_by(self.server)
        return (), (Unavailable("server", self.server.name, reason, names),)

    async def call(self, tool: Tool, arguments: JSONObject, context: CallContext) -> CallOutput:
        """Call a tool as `McpTools.call` does."""
        if not allows(self.server, tool.name):
            raise ToolError("refused", f"{tool.name} is not allowed on tool server {tool.server}")
        if tool.name in self.changed:
            raise ToolError("unavailable", f"unavailable: {tool.name} has {CHANGED} since pinned")

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            done = f"{progress:g}"
            context.progress(message or (done if total is None else f"{done} of {total:g}"))

        try:
            result = await self.result(tool.name, arguments, on_progress, context)
            return call_output(tool.name, result)
        except NoAnswer as error:
            if tool.read_only or tool.idempotent:
                raise
            raise ToolError("unknown", prompt.outcome_unknown(error.message)) from error

    async def result(
        self,
        name: str,
        arguments: JSONObject,
        progress: ProgressFnT,
        context: CallContext = _NOBODY,
    ) -> mcp_types.CallToolResult:
        """Call a tool within its time limit. Raises `ToolError` if there is no result.

        A call that was not sent is retried once, on a new connection.
        """
        seconds = timeout_of(self.server, name)
        reason = NOT_CONNECTED_YET
        for _ in range(2):
            connection = await self.open_connection()
            call = OpenCall(name, context, seconds)
            try:
                async with call.timeout:
                    if name == READ_RESOURCE and connection.reads_resources:
                        return await connection.read_resource(call, str(arguments["uri"]))
                    return await connection.call(call, arguments, progress)
            except CallNotSent as error:
                reason = error.reason
                if not error.may_retry:
                    break
            except TimeoutError as error:
                connection.check_requested.set()
                text = f"{name} gave no answer within {seconds:g} s"
                raise NoAnswer(text, "timeout") from error
        raise self._unavailable(reason)

    async def close(self) -> None:
        """End the supervision, its connections and their calls."""
        tasks = list(self._connections)
        for task, connection in self._connections.items():
            # Cancelling an open connection would skip its orderly shutdown.
            connection.close() if connection.attempted.is_set() else task.cancel()
        if self._task is not None:
            self._task.cancel()
            tasks.append(self._task)
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=self._settings.close_timeout)
            for task in unfinished:
                task.cancel()
        self._connection, self._task, self._last_reason = None, None, "closed"
        self._next_attempt.set()
        if self._http is not None:
            await self._http.aclose()

    async def open_connection(self) -> Connection:
        """Return the open connection, or wait for the next attempt. Raises `ToolError`."""
        if self._connection is None or not self._connection.is_open:
            if self._task is None:
                raise self._unavailable(self._last_reason or NOT_CONNECTED_YET)
            self._reconnect.set()
            await wait_for(self._next_attempt, self._settings.connect_timeout)
        if self._connection is None or not self._connection.is_open:
            raise self._unavailable(self.reason or NOT_CONNECTED_YET)
        return self._connection

    def _unavailable(self, reason: str) -> ToolError:
        return ToolError("unavailable", f"tool server {self.server.name}: {reason}")

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._settings.initial_delay, self._settings.max_delay)
        while True:
            connection = await self._connect()
            if connection.may_be_older:
                connection = await self._connect(otherwise=connection.reason)
            began_at = loop.time()
            self._announce(connection)
            await self._monitor(connection)
            if loop.time() - began_at > self._settings.max_delay:
                backoff.reset()
            await wait_for(self._reconnect, backoff.next_delay())

    async def _connect(self, otherwise: str | None = None) -> Connection:
        """Attempt to connect once; return the connection, whether it is open or has failed.

        With `otherwise`, over HTTP+SSE; it is the reason if the server does not speak that either.
        """
        connection = Connection(
            functools.partial(self._client, otherwise=otherwise), self._messages
        )
        task = asyncio.create_task(connection.run(), name=f"mcp {self.server.name} connection")
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)
        settings = self._settings
        seconds = settings.start_timeout if self.server.command else settings.connect_timeout
        try:
            async with asyncio.timeout(seconds):
                await connection.attempted.wait()
        except TimeoutError:
            connection.drain(f"did not answer within {seconds:g} s")
            task.cancel()
        return connection

    def _announce(self, connection: Connection) -> None:
        """Wake every task that waits for the end of an attempt to connect."""
        self._connection = connection
        self._log(connection.reason)
        self._reconnect.clear()
        self.first_attempt.set()
        self._next_attempt.set()
        self._next_attempt = asyncio.Event()

    async def _monitor(self, connection: Connection) -> None:
        """List the tools regularly, also as a health check, until the connection ends."""
        timeout = self._settings.connect_timeout
        while connection.is_open:
            reads_resources = connection.reads_resources
            self._set_tools(connection.tools, connection.listing, reads_resources=reads_resources)
            # Limit the rate: a server may notify of changed tools after each listing.
            await wait_for(connection.ended, self._settings.initial_delay)
            # Python functions never change or fail; they need no regular check.
            interval = self._settings.refresh_interval * random.uniform(0.75, 1.0)  # noqa: S311 - jitter
            await wait_for(connection.check_requested, None if self._functions else interval)
            if not connection.is_open:
                break
            try:
                async with asyncio.timeout(timeout):
                    await connection.refresh_tools()
            except TimeoutError:
                connection.drain(f"did not answer within {timeout:g} s")
        self._log(connection.reason)

    def _set_tools(
        self, listed: Sequence[mcp_types.Tool], listing: ToolListing, *, reads_resources: bool
    ) -> None:
        self.has_listed = True
        allowed = [tool for tool in listed if allows(self.server, tool.name)]
        changed = changed_tools(self.server.pins, allowed)
        refused = listing.left_out.items()
        invalid = {tool: place for tool, place in refused if allows(self.server, tool)}
        usable = usable_tools((tool for tool in allowed if tool.name not in changed), invalid)
        ours = (RESOURCE_READER,) if reads_resources else ()
        tools = catalog_tools(self.server, (*usable.tools, *ours))
        name = self.server.name
        cut = (Unavailable("tool", name, listing.cut),) if listing.cut else ()
        left_out = (*changed_entry(name, changed), *usable.unavailable(name), *cut)
        for entry in left_out if left_out != self.left_out else ():
            logger.warning("tools of server %s: %s", name, entry.reason)
        if changed.keys() - set(self.changed):
            audit_changed(name, changed)
        self.left_out, self.changed = left_out, changed.keys()
        if tools != self.tools:
            logger.info("tool server %s offers %d tools", name, len(tools))
            self.tools = tools

    def _log(self, reason: str | None) -> None:
        if reason is not None and reason != self._last_reason:
            logger.warning("tool server %s is unavailable: %s", self.server.name, reason)
        self._last_reason = reason

    def _client(self, connection: Connection, otherwise: str | None) -> Client:
        async def on_message(message: object) -> None:
            match message:
                case mcp_types.ToolListChangedNotification():
                    connection.check_requested.set()
                case mcp_types.ElicitCompleteNotification(params=params):
                    connection.complete_page(params.elicitation_id)

        return Client(
            connection.listing.over(self._transport(connection, otherwise)),
            mode="legacy" if otherwise else "auto",
            client_info=mcp_types.Implementation(name="diptych", version=version("diptych")),
            message_handler=on_message,
            logging_callback=self._messages.log,
            log_level=wanted_level(),
            elicitation_callback=_too_early if self._can_ask else None,
            cache=None,
        )

    def _transport(
        self, connection: Connection, otherwise: str | None
    ) -> MCPServer[Any] | Transport:
        if self._functions is not None:
            return self._functions
        if self.server.url is None:
            return stdio_transport(
                self.server.command, self._environment(), on_exit=connection.drain
            )
        if self._http is None:
            self._http = http_client(self.server.url, self.server.headers, self._authorize)
        if otherwise is not None:
            return sse_transport(self.server.url, self._http, connection.drain, otherwise)
        return streamable_http_client(
            self.server.url, http_client=self._http, max_sse_event_size=MAX_ANSWER_BYTES
        )

    def _environment(self) -> dict[str, str]:
        """Return the command's environment. Raises `CallNotSent` while a secret is missing."""
        variables = {}
        for name, value in self.server.env.items():
            if isinstance(value, str):
                variables[name] = value
            elif (secret := value()) is None:
                raise CallNotSent(f"variable {name} has no value yet")
            else:
                variables[name] = secret
                SECRETS.remember(secret)
        return variables


async def _too_early(
    context: ClientRequestContext, params: mcp_types.ElicitRequestParams
) -> mcp_types.ErrorData:
    """Declare elicitation; `Connection` answers itself once it is open."""
    del context, params
    return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message="no call is open")


async def wait_for(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until the event is set, or `seconds` have passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
