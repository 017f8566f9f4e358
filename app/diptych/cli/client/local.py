"""Serves the agents of a file in this process, on free loopback ports, while a block lasts."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import typer

from diptych.cli.client.agent_client import (
    Availability,
    Choice,
    NoticeHandler,
    StartedRun,
    ignore_notice,
)
from diptych.core.errors import ConfigError
from diptych.core.events import MessageQueued
from diptych.core.messages import Message
from diptych.core.text import well_formed
from diptych.manifest.loader import LoadedAgents, LocalOptions, load_agents
from diptych.manifest.telemetry import read_telemetry
from diptych.ports import Item
from diptych.runs.approvals import DecisionRequest
from diptych.runs.request import RunRequest
from diptych.serve.hosted_agent import HostedAgent
from diptych.serve.local_agents import serve_on_loopback
from diptych.serve.undumpable import make_undumpable

SAY_AFTER_SECONDS = 3.0


class LocalAgent:
    """An agent of this process; fulfils `AgentClient`."""

    def __init__(self, agent: HostedAgent) -> None:
        self.name = agent.name
        self.url = agent.url
        self._agent = agent

    async def availability(self) -> Availability:
        now = self._agent.readiness()
        return Availability(
            now.unavailable, any("DEBUG_MOCK_RESPONSES" in note for note in now.notes)
        )

    async def start(
        self,
        question: str,
        session_id: str | None,
        on_notice: NoticeHandler = ignore_notice,  # noqa: ARG002 - no connection can break here
    ) -> StartedRun:
        entry = await self._agent.runs.start(
            RunRequest((Message("user", question),), "", session_id)
        )
        return StartedRun(entry.run_id, entry.session_id)

    async def subscribe(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        async with aclosing(self._agent.runs.subscribe(run_id, after)) as batches:
            async for batch in batches:
                yield batch

    async def decide(self, run_id: str, call_id: str, decision: Choice, reason: str) -> None:
        await self._agent.runs.decide(run_id, call_id, DecisionRequest(decision, reason))

    async def send(self, run_id: str, message: str, *, is_follow_up: bool = False) -> None:
        steered = MessageQueued(well_formed(message), uuid4().hex, is_follow_up=is_follow_up)
        await self._agent.runs.send_message(run_id, steered)

    async def cancel(self, run_id: str) -> None:
        await self._agent.runs.cancel(run_id)


@asynccontextmanager
async def local_agents(loaded: LoadedAgents) -> AsyncIterator[list[LocalAgent]]:
    """Serve all agents; give them once each has tried to reach its tools and agents."""
    make_undumpable()
    for note in read_telemetry(os.environ)[1]:
        typer.echo(note, err=True)
    async with serve_on_loopback(loaded) as agents:
        await _wait_until_tried(agents)
        yield [LocalAgent(agent) for agent in agents]


async def _wait_until_tried(agents: Sequence[HostedAgent]) -> None:
    """Wait for the tools and agents of all, and say so if that takes long."""

    async def try_all() -> None:
        await asyncio.gather(*(agent.wait_until_tried() for agent in agents))

    trying = asyncio.create_task(try_all())
    try:
        done, _ = await asyncio.wait([trying], timeout=SAY_AFTER_SECONDS)
        if not done:
            late = {u.name for a in agents for u in a.readiness().unavailable if u.kind == "server"}
            typer.echo(f"Waiting for {', '.join(sorted(late)) or 'agents'} to start …", err=True)
        await trying
    finally:
        trying.cancel()  # by Ctrl-C


@asynccontextmanager
async def agent_of_file(
    file: Path, name: str | None, options: LocalOptions
) -> AsyncIterator[LocalAgent]:
    """Serve a file's agents; give the one called `name`, else the first. Raises `ConfigError`."""
    loaded = load_agents([file], replace(options, asked=name))
    if name is not None and name not in loaded.names:
        names = ", ".join(loaded.names)
        raise ConfigError(f"--agent {name}: {file} has no Agent of that name; it has {names}")
    async with local_agents(loaded) as agents:
        yield next(agent for agent in agents if name in (None, agent.name))
