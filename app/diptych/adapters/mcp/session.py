"""Holds one session per MCP server: connects, notices its end, connects again.

Not here: one connection (`link`), and how it is made (`wire`, `stdio`,
`functions`).
"""

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import httpx2
import mcp_types
from mcp import Client
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer

from diptych.adapters.mcp.connection import Link, Unsent
from diptych.adapters.mcp.functions import function_server
from diptych.adapters.mcp.stdio import stdio
from diptych.adapters.mcp.tool_rules import offers, timeout_of
from diptych.adapters.mcp.transport import MOST_BYTES_READ, http_client
from diptych.config.settings import ToolConfig
from diptych.errors import ToolError
from diptych.loop.catalog import Tool
from diptych.loop.messages import JSONObject
from diptych.ports import Progress

logger = logging.getLogger(__name__)

NOT_YET = "not connected yet"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take and when they are tried again, in seconds.

    A new attempt waits from `first` up to `most`, doubled each time, with jitter. Every `look`, a
    server is asked for its tools again, and whether it is there. `start` is for commands.
    """

    first: float = 0.2
    most: float = 10.0
    look: float = 15.0
    connect: float = 5.0
    start: float = 60.0
    close: float = 1.8


class Keeper:
    """Looks after one server until it is closed: no failure of the server ends it.

    `tools` are what the server offered last. `tried` is set when the first attempt is over.
    """

    def __init__(self, server: ToolConfig, pace: Pace) -> None:
        self.server = server
        self.tools: tuple[Tool, ...] = ()
        self.tried = asyncio.Event()
        self._pace = pace
        self._functions = function_server(server) if server.functions else None
        self._http: httpx2.AsyncClient | None = None
        self._link: Link | None = None
        self._reason: str | None = NOT_YET
        self._wanted = asyncio.Event()
        self._attempted = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._links: dict[asyncio.Task[None], Link] = {}

    @property
    def reason(self) -> str | None:
        """Why the server cannot be used now, in a few words; None if it can."""
        return self._reason if self._link is None else self._link.reason

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name=f"mcp {self.server.name}")

    def wake(self) -> None:
        """Connect now instead of when it is due, if there is no connection."""
        if self.reason is not None:
            self._wanted.set()

    async def call(
        self, name: str, arguments: JSONObject, progress: Progress
    ) -> mcp_types.CallToolResult:
        """Call a tool, once, within its time limit. Raises `ToolError` if there is no result.

        A call that never left gets a second connection, if there is one to be had.
        """
        reason = NOT_YET
        for _ in range(2):
            link = await self._link_up()
            try:
                return await self._timed(link, name, arguments, progress)
            except Unsent as unsent:
                reason = unsent.reason
                if not unsent.again:
                    break
        raise self._unavailable(reason)

    async def close(self) -> None:
        """End the supervisor, the connections and the calls on them."""
        tasks = list(self._links)
        for task, link in self._links.items():
            # A task that is asked to leave must not be cancelled: that would cut its leaving short.
            link.drop() if link.ready.done() else task.cancel()
        if self._supervisor is not None:
            self._supervisor.cancel()
            tasks.append(self._supervisor)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._pace.close)
            for task in late:
                task.cancel()
        self._link, self._supervisor, self._reason = None, None, "closed"
        self._attempted.set()
        if self._http is not None:
            await self._http.aclose()

    async def _timed(
        self, link: Link, name: str, arguments: JSONObject, progress: Progress
    ) -> mcp_types.CallToolResult:
        seconds = timeout_of(self.server, name)
        try:
            async with asyncio.timeout(seconds):
                return await link.call(name, arguments, progress)
        except TimeoutError as error:
            link.doubt()
            raise ToolError("timeout", f"{name} gave no answer within {seconds:g} s") from error

    async def _link_up(self) -> Link:
        if self._link is None or not self._link.is_up:
            if self._supervisor is None:
                raise self._unavailable(self._reason or NOT_YET)
            self._wanted.set()
            attempted = self._attempted
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.connect):
                    await attempted.wait()
        if self._link is None or not self._link.is_up:
            raise self._unavailable(self.reason or NOT_YET)
        return self._link

    def _unavailable(self, reason: str) -> ToolError:
        return ToolError("unavailable", f"tool server {self.server.name}: {reason}")

    async def _supervise(self) -> None:
        delay = self._pace.first
        while True:
            link = await self._attempt()
            since = asyncio.get_running_loop().time()
            self._announce(link)
            await self._watch(link)
            if asyncio.get_running_loop().time() - since > self._pace.most:
                delay = self._pace.first
            if not await _is_set(self._wanted, _jittered(delay)):
                delay = min(delay * 2, self._pace.most)

    async def _attempt(self) -> Link:
        link = Link(self._client)
        task = asyncio.create_task(link.hold(), name=f"mcp {self.server.name} link")
        self._links[task] = link
        task.add_done_callback(self._links.pop)
        seconds = self._pace.start if self.server.command else self._pace.connect
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(link.ready)
        except TimeoutError:
            link.end(f"did not answer within {seconds:g} s")
            task.cancel()
        return link

    def _announce(self, link: Link) -> None:
        """Let everyone know how an attempt ended, those who wait for it first of all."""
        self._link = link
        self._log(link.reason)
        self._wanted.clear()
        self.tried.set()
        self._attempted.set()
        self._attempted = asyncio.Event()

    async def _watch(self, link: Link) -> None:
        """Keep the tools up to date, and look whether the server is there, until the link ends."""
        while link.is_up:
            self._take(offers(self.server, link.listed))
            link.stir.clear()
            # The tools of functions never change, and functions are always there.
            seconds = None if self._functions else _jittered(self._pace.look)
            await _is_set(link.stir, seconds)
            if not link.is_up:
                break
            try:
                async with asyncio.timeout(self._pace.connect):
                    await link.look()
            except TimeoutError:
                link.end(f"did not answer within {self._pace.connect:g} s")
        self._log(link.reason)

    def _take(self, tools: tuple[Tool, ...]) -> None:
        if tools != self.tools:
            logger.info("tool server %s offers %d tools", self.server.name, len(tools))
            self.tools = tools

    def _log(self, reason: str | None) -> None:
        if reason is not None and reason != self._reason:
            logger.warning("tool server %s is unavailable: %s", self.server.name, reason)
        self._reason = reason

    def _client(self, link: Link) -> Client:
        async def hear(message: object) -> None:
            if isinstance(message, mcp_types.ToolListChangedNotification):
                link.doubt()

        return Client(
            self._way(link),
            client_info=mcp_types.Implementation(name="diptych", version=version("diptych")),
            message_handler=hear,
            input_required_max_rounds=0,
            cache=None,
        )

    def _way(self, link: Link) -> MCPServer[Any] | Transport:
        if self._functions is not None:
            return self._functions
        if self.server.url is None:
            return stdio(self.server.command, self._env(), died=link.end)
        if self._http is None:
            self._http = http_client(self.server.headers)
        return streamable_http_client(
            self.server.url, http_client=self._http, max_sse_event_size=MOST_BYTES_READ
        )

    def _env(self) -> dict[str, str]:
        env = {}
        for name, said in self.server.env.items():
            value = said if isinstance(said, str) else said()
            if value is None:
                raise Unsent(f"variable {name} has no value yet")
            env[name] = value
        return env


async def _is_set(event: asyncio.Event, seconds: float | None) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.75, 1.0)  # noqa: S311 - so that pods do not move in step
