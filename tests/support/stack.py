"""The whole stack on loopback: agents, a model's HTTP server and tool servers, all of them real.

Builders of what must be closed are context managers; each takes a free port and leaves nothing.
"""

import asyncio
import inspect
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn
from mcp.server import MCPServer
from support.model_server import ModelServer

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import (
    DEADLINE,
    AgentConfig,
    ModelConfig,
    PeerConfig,
    TimeoutConfig,
    ToolServerConfig,
)
from diptych.manifest.telemetry import TelemetrySettings
from diptych.models.connection import open_http_session
from diptych.runs.definition import AgentDefinition
from diptych.serve.hosted_agent import HostedAgent, ProcessParts
from diptych.serve.process import SEND_BUFFER_BYTES, ListenAddress, Sockets, serve_agents

USUAL = TimeoutConfig(connect=5.0, first_byte=20.0, idle=20.0, total=60.0)
QUICK = TimeoutConfig(connect=0.5, first_byte=0.2, idle=0.2, total=2.0)
"""For tests that wait until a model has said nothing for too long."""


def script(*replies: Any) -> str:
    """Write replies as DEBUG_MOCK_RESPONSES has them."""
    return json.dumps(list(replies))


def call(tool: str, **arguments: Any) -> str:
    """Write a tool call as a model does."""
    return json.dumps({"tool": tool, "arguments": arguments})


# The tools


def box(*functions: Callable[..., Any], **fields: Any) -> ToolServerConfig:
    """Offer functions as the tools of an MCP server of the agent's own process."""
    return ToolServerConfig("box", functions=functions, **fields)


@asynccontextmanager
async def tool_server(
    *functions: Callable[..., Any], port: int = 0
) -> AsyncIterator[ToolServerConfig]:
    """Serve functions as the tools of an MCP server called `box`."""
    server = MCPServer("box", log_level="CRITICAL")
    for function in functions:
        server.add_tool(function)
    async with listening(server.streamable_http_app(), port) as url:
        yield ToolServerConfig("box", url=f"{url}/mcp")


@asynccontextmanager
async def listening(app: Any, port: int = 0, protocol: Any = "auto") -> AsyncIterator[str]:
    """Serve an ASGI application; gives its base URL. At the end its connections are cut.

    `protocol` is a class of uvicorn's kind, or what makes one.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    bound.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, http=protocol, log_config=None, access_log=False)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([bound])
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        for task in list(server.server_state.tasks):
            task.cancel()
        await server.lifespan.shutdown()


# The agents


@dataclass
class Stage:
    """An agent that is served, and a client that asks it."""

    served: HostedAgent
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return self.served.url

    @property
    def name(self) -> str:
        return self.served.name

    async def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return await self.http.post("/v1/chat/completions", json={"messages": messages, **fields})

    async def answer(self, text: str = "hi", **fields: Any) -> str:
        response = await self.chat(text, **fields)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    async def start(self, text: str = "hi", **fields: Any) -> str:
        response = await self.http.post("/v1/runs", json={"input": text, **fields})
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    async def run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.http.get(f"/v1/runs/{run_id}")).json()
        return found

    async def ended(self, run_id: str) -> dict[str, Any]:
        """Wait for a run's end, by its events."""
        await self.http.get(f"/v1/runs/{run_id}/events")
        return await self.run(run_id)

    async def memory(self, **query: Any) -> list[dict[str, Any]]:
        events = (await self.http.get("/memory/events", params=query)).json()["events"]
        assert isinstance(events, list)
        return events

    async def facts(self, **query: Any) -> list[str]:
        return [event["event_type"] for event in await self.memory(**query)]


BEYOND = ProcessParts(on_loopback=False)


@asynccontextmanager
async def beyond_loopback(config: AgentConfig) -> AsyncIterator[httpx.AsyncClient]:
    """An agent as it is served beyond loopback, where it asks who asks; no socket is opened."""
    async with open_http_session() as session, HostedAgent(config, session, shared=BEYOND) as agent:
        transport = httpx.ASGITransport(agent.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://helper") as http:
            yield http


@asynccontextmanager
async def stages(
    *configs: AgentConfig, telemetry: TelemetrySettings | None = None
) -> AsyncIterator[list[Stage]]:
    """Serve agents side by side; a peer's URL may be the name of one of them."""
    sockets = Sockets(ListenAddress(port=0), len(configs))
    urls = {config.name: url for config, url in zip(configs, sockets.urls, strict=True)}
    resolved = [replace(config, agents=_resolved(config, urls)) for config in configs]
    async with AsyncExitStack() as stack:
        served_agents = await stack.enter_async_context(
            serve_agents(resolved, sockets, telemetry=telemetry)
        )
        for served in served_agents:
            await served.wait_for_first_connect()
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=served.url, timeout=10))
            for served in served_agents
        ]
        yield [Stage(served, http) for served, http in zip(served_agents, clients, strict=True)]


@asynccontextmanager
async def stage(
    *replies: Any, model: ModelServer | None = None, name: str = "helper", **fields: Any
) -> AsyncIterator[Stage]:
    """Serve one agent: over a model's server, or over a script of replies."""
    async with stages(agent(*replies, model=model, name=name, **fields)) as (only,):
        yield only


def agent(
    *replies: Any, model: ModelServer | None = None, name: str = "helper", **fields: Any
) -> AgentConfig:
    """Configure an agent; other fields are those of `AgentConfig` and `ModelConfig`.

    `loop` and `deadline` go into its definition.
    """
    fields["definition"] = AgentDefinition(
        settings=fields.pop("loop", None) or RunSettings(),
        deadline=fields.pop("deadline", DEADLINE),
    )
    asked = {key: fields.pop(key) for key in ("api_key", "timeouts", "inputs") if key in fields}
    if model is None:
        return AgentConfig(name, mock_responses=script(*replies), **fields)
    timeouts = asked.pop("timeouts", USUAL)
    return AgentConfig(
        name, model=ModelConfig("m", model.url, timeouts=timeouts, **asked), **fields
    )


def _resolved(config: AgentConfig, urls: Mapping[str, str]) -> tuple[PeerConfig, ...]:
    return tuple(replace(peer, url=urls.get(peer.url, peer.url)) for peer in config.agents)


# What a client reads


@dataclass(frozen=True)
class Frame:
    """One server-sent event."""

    data: str
    event: str | None = None
    id: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def frames(text: str) -> list[Frame]:
    """Read a stream; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        fields = [
            line.partition(": ")[::2] for line in block.split("\n") if line[:1] not in ("", ":")
        ]
        if fields:
            named = dict(fields)
            found.append(Frame(named["data"], named.get("event"), named.get("id")))
    return found


def text_of(told: Sequence[Frame]) -> str:
    """Put the text of a chat stream together."""
    chunks = [frame.json for frame in told if frame.data != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


async def until(claim: Callable[[], Any], seconds: float = 5) -> None:
    """Wait until a claim holds, which may be a coroutine function's."""
    async with asyncio.timeout(seconds):
        while True:
            holds = claim()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.005)
