"""Agents inside a program: one without a socket, or a file's agents on loopback."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from diptych.manifest.loader import LoadedAgents
from diptych.manifest.settings import AgentConfig
from diptych.manifest.telemetry import read_telemetry
from diptych.serve.hosted_agent import HostedAgent, InProcessBackends, ProcessParts
from diptych.serve.process import ListenAddress, Sockets, serve_agents
from diptych.serve.tracing import opened_traces, traced_http_session
from diptych.stores.memory.store import MemoryStore


@asynccontextmanager
async def host_one(
    config: AgentConfig, in_process: InProcessBackends, memory: MemoryStore
) -> AsyncGenerator[HostedAgent]:
    """Run an agent without a socket, while the block lasts."""
    async with (
        opened_traces(read_telemetry(os.environ)[0]) as traces,
        traced_http_session(traces) as http,
        HostedAgent(
            config,
            http,
            in_process=in_process,
            shared=ProcessParts(traces=traces),
            memory=memory,
        ) as hosted,
    ):
        yield hosted


@asynccontextmanager
async def serve_on_loopback(loaded: LoadedAgents) -> AsyncGenerator[list[HostedAgent]]:
    """Serve the agents of files at free ports, traced as the environment says."""
    sockets = Sockets(ListenAddress(), len(loaded.names))
    telemetry = read_telemetry(os.environ)[0]
    async with serve_agents(loaded.resolve(sockets.urls), sockets, telemetry=telemetry) as agents:
        yield agents


@asynccontextmanager
async def host_file(loaded: LoadedAgents, name: str) -> AsyncGenerator[HostedAgent]:
    """Serve the agents of files on loopback while the block lasts; yield the one called `name`."""
    async with serve_on_loopback(loaded) as agents:
        await asyncio.gather(*(agent.wait_until_tried() for agent in agents))
        yield next(agent for agent in agents if agent.name == name)
